"""Command lines of the control plane's programs, as pure functions of its configuration."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from zonewise.lab import slots

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_RANGES = (SERVICE_RANGE, "fd7a:6f6e:6600::/112")
"""Of labs with nodes, which are dual-stack: a Service has an IPv6 address if its ipFamilies or ipFamilyPolicy ask for one."""
KUBERNETES_SERVICE_ADDRESS = "10.96.0.1"
CLUSTER_DNS_ADDRESS = "10.96.0.10"
"""Of the Service kube-dns, in labs that have a DNS server."""
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
WEBHOOKS_AT_PODS = ("--enable-aggregator-routing=true",)
"""For an API server that runs where no Service is served: it asks webhooks at their pods' own addresses."""
CLIENT_LIMITS = ("--kube-api-qps=500", "--kube-api-burst=1000")


class Program(StrEnum):
    ETCD = "etcd"
    APISERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KWOK = "kwok"


class LabUser(msgspec.Struct, frozen=True):
    name: str
    groups: tuple[str, ...] = ()


ADMIN = "admin"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
"""What the API server is to kubelets."""
USERS = {
    ADMIN: LabUser("admin", ("system:masters",)),
    Program.CONTROLLER_MANAGER: LabUser("system:kube-controller-manager"),
    Program.SCHEDULER: LabUser("system:kube-scheduler"),
    Program.KWOK: LabUser("kwok", ("system:masters",)),
    "kube-proxy": LabUser("system:kube-proxy"),
    KUBELET_CLIENT: LabUser(KUBELET_CLIENT),
}


FRONT_PROXY_CA = "front-proxy-ca"
FRONT_PROXY_CLIENT = "front-proxy-client"
"""What the API server is to API servers behind it (aggregation): they take its word for who asks."""


class ControlPlaneConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What may differ between control planes."""

    version: str
    programs: tuple[Program, ...] = tuple(Program)
    controllers: str = "*"
    address: str = "127.0.0.1"  # where the API server listens: loopback, or the bridge that a lab's nodes reach
    flags: dict[Program, tuple[str, ...]] = {}  # more flags; the last of its kind wins

    def runs(self, controller: str) -> bool:
        """Whether the controller manager runs this controller: the last entry counts, as in --controllers."""
        words = self.controllers.split(",")
        if f"-{controller}" in words:
            return False
        return Program.CONTROLLER_MANAGER in self.programs and (controller in words or "*" in words)


class ControlPlaneFiles(msgspec.Struct, frozen=True):
    """Where a control plane's files and ports are."""

    directory: Path
    data: Path
    binaries: Path
    slot: int

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def etcd_socket(self) -> Path:
        return self.data / "client.sock"

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user}.kubeconfig"

    def port(self, program: Program) -> int:
        return slots.port(self.slot, list(Program).index(program))

    def program(self, name: str) -> str:
        return str(self.binaries / name)


def command(program: Program, settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> list[str]:
    return [layout.program(program), *_FLAGS[program](settings, layout), *settings.flags.get(program, ())]


def _etcd(_settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> list[str]:
    # Sockets in a directory of mode 0700 keep other users of the machine out without TLS. etcd demands host:port in the
    # addresses it advertises and takes them as file names in its working directory.
    return [
        "--name=lab",
        f"--data-dir={layout.data / 'etcd'}",
        f"--listen-client-urls=unix://{layout.etcd_socket}",
        "--advertise-client-urls=unix://client:0",
        "--listen-peer-urls=unix://peer:0",
        "--initial-advertise-peer-urls=unix://peer:0",
        "--initial-cluster=lab=unix://peer:0",
        "--unsafe-no-fsync",
        # Alone in its cluster it still waits out an election before it answers: a second with the defaults.
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--log-level=warn",
    ]


def _apiserver(settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> list[str]:
    pki = layout.pki
    return [
        f"--etcd-servers=unix://{layout.etcd_socket}",
        f"--bind-address={settings.address}",
        f"--secure-port={layout.port(Program.APISERVER)}",
        # An Endpoints object for the kubernetes Service may not name a loopback address.
        *(
            ["--endpoint-reconciler-type=none"]
            if settings.address.startswith("127.")
            else [f"--advertise-address={settings.address}"]
        ),
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.key'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def front_proxy_flags(pki: Path) -> tuple[str, ...]:
    """The API server's. The authority is another than the cluster's, whose clients must not ask in the name of others."""
    return (
        f"--requestheader-client-ca-file={pki / FRONT_PROXY_CA}.crt",
        f"--requestheader-allowed-names={FRONT_PROXY_CLIENT}",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki / FRONT_PROXY_CLIENT}.crt",
        f"--proxy-client-key-file={pki / FRONT_PROXY_CLIENT}.key",
    )


def _controller_manager(settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> list[str]:
    return [
        *_component(Program.CONTROLLER_MANAGER, layout),
        f"--controllers={settings.controllers}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki / 'sa.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-key-file={layout.pki / 'ca.key'}",
    ]


def _scheduler(_settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> list[str]:
    return _component(Program.SCHEDULER, layout)


def _component(program: Program, layout: ControlPlaneFiles) -> list[str]:
    return [
        f"--kubeconfig={layout.kubeconfig(program)}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.port(program)}",
        f"--cert-dir={layout.directory / 'serving' / program}",
        "--authentication-skip-lookup=true",
        "--leader-elect=false",
        "--profiling=false",
        *CLIENT_LIMITS,
    ]


def _kwok(_settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> list[str]:
    return [
        f"--kubeconfig={layout.kubeconfig(Program.KWOK)}",
        f"--config={layout.binaries / 'kwok-stages.yaml'}",
        f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
        "--cidr=10.244.0.0/16",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{layout.port(Program.KWOK)}",
    ]


_FLAGS: dict[Program, Callable[[ControlPlaneConfig, ControlPlaneFiles], list[str]]] = {
    Program.ETCD: _etcd,
    Program.APISERVER: _apiserver,
    Program.CONTROLLER_MANAGER: _controller_manager,
    Program.SCHEDULER: _scheduler,
    Program.KWOK: _kwok,
}
