"""Programs of a lab's nodes: kubelet, containerd, runc, kube-proxy, kube-router.

They run in the node's network namespace and its own mount, UTS and PID namespaces. Each node is one recorded process
(`node_init`, below `unshare`), and its end is the end of everything in the node. What is left then are the node's cgroups
and directory, which `lab down` removes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import zonewise
from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import processes
from zonewise.lab.controlplane import programs
from zonewise.lab.controlplane.controlplane import ControlPlane, StatusError
from zonewise.lab.decide import containerd_config, kubelet_config
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.decide.containerd_config import CNI_DIRECTORY
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups, image_store, images, kube_router, node_init
from zonewise.lab.nodes import kube_proxy as stock_proxy
from zonewise.lab.nodes.kube_proxy import StartedProxy
from zonewise.lab.nodes.node_init import NodeInitConfig, NodeUnit
from zonewise.lab.processes import Process
from zonewise.lab.records import write_private
from zonewise.lab.state import Lab

UNITS: Final = ("containerd", "kubelet")
KUBE_PROXY: Final = "kube-proxy"
KUBE_ROUTER: Final = "kube-router"
_NAMESPACES: Final = ("unshare", "--mount", "--uts", "--pid", "--propagation=private", "--fork", "--kill-child", "--")
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HELD_WITHIN_SECONDS: Final = 60.0
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


def process_name(node: str) -> str:
    return f"node-{node}"


def unit_name(unit: str, node: str) -> str:
    return f"{unit}-{node}"


def api_server_flags(pki: Path) -> tuple[str, ...]:
    """`kubectl logs` and `exec` go from the API server to kubelets, at addresses and with certificates that both verify."""
    return (
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / f'{programs.KUBELET_CLIENT}.crt'}",
        f"--kubelet-client-key={pki / f'{programs.KUBELET_CLIENT}.key'}",
        "--enable-admission-plugins=NodeRestriction",
    )


def up(lab: Lab, plans: Sequence[NodePlan], progress: Callable[[str], None]) -> list[StartedProxy]:
    """Start those nodes that do not run, without waiting until they are ready. Returns the kube-proxies among their programs."""
    plane = ControlPlane.attach(lab.directory)
    _let_api_server_ask_kubelets(plane)
    if lab.kube_router is not None:
        _let_kube_router_read(plane)
    archives = [*images.write(lab.directory / "images", _runtime(lab)), *lab.image_archives]
    _write_pod_link_plugin(lab.directory / "cni")
    missing = [node for node in plans if not is_running(lab.directory, node.name)]
    proxies = [stock_proxy.starting(lab.directory, node) for node in missing if lab.kube_proxy]
    with image_store.ensure(_runtime(lab), archives, progress) as store:
        for node in missing:
            _create(plane, "/api/v1/nodes", kubelet_config.node_object(node))
            _start(lab, plane, node, store)
        _await_held(lab.directory, [node.name for node in missing])
    return proxies


def is_running(directory: Path, node: str) -> bool:
    process = processes.find(directory, process_name(node))
    return process is not None and process.running


def units(directory: Path, node: str, names: Sequence[str] = UNITS) -> list[Process]:
    """These programs of a node; one that does not run now has the id 0."""
    running = {_command(pid): pid for pid in _children(first_process(directory, node))}
    return [_process(unit_name(unit, node), running.get(unit, 0)) for unit in names]


def unit_names(lab: Lab) -> tuple[str, ...]:
    """The programs of each of the lab's nodes."""
    chosen = {KUBE_PROXY: lab.kube_proxy, KUBE_ROUTER: lab.kube_router}
    return (*UNITS, *(name for name, program in chosen.items() if program is not None))


def first_process(directory: Path, node: str) -> int:
    """The id of the node's process 1 on this machine; 0 if the node does not run."""
    recorded = processes.find(directory, process_name(node))
    return next(iter(_children(recorded.pid)), 0) if recorded is not None and recorded.running else 0


def load(lab: Lab, plans: Sequence[NodePlan], archive: Path) -> list[str]:
    """Load an image archive into every node; returns the names of its images."""
    if not plans or lab.runtime is None:
        raise UsageError(f"lab {lab.name!r} has no nodes to load images into: start one with --nodes, as root")
    return images.load(lab.runtime, [Path(f"/proc/{_running(lab, node.name)}/root") for node in plans], archive)


def exec_argv(lab: Lab, node: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs argv in all namespaces of a node, with the node's programs in its path."""
    target = f"--target={_running(lab, node)}"
    return ["nsenter", target, "--mount", "--uts", "--net", "--pid", "--", "env", f"PATH={_path(lab)}", *argv]


def _running(lab: Lab, node: str) -> int:
    pid = first_process(lab.directory, node)
    if not pid:
        log = processes.log_path(lab.directory, process_name(node))
        raise ZonewiseError(f"node {node} of lab {lab.name!r} does not run: see {log}")
    return pid


def _runtime(lab: Lab) -> Path:
    if lab.runtime is None:
        raise ZonewiseError(f"lab {lab.name!r} was started without a container runtime: remove it, then start it again")
    return lab.runtime


def _path(lab: Lab) -> str:
    return f"{_runtime(lab)}:{lab.binaries}:{_SYSTEM_PATH}"


def _let_api_server_ask_kubelets(plane: ControlPlane) -> None:
    group = "rbac.authorization.k8s.io"
    user = programs.USERS[programs.KUBELET_CLIENT].name
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    _create(plane, f"{_RBAC}/clusterrolebindings", binding)


def _let_kube_router_read(plane: ControlPlane) -> None:
    plane.add_user(KUBE_ROUTER, kube_router.USER)
    _create(plane, f"{_RBAC}/clusterroles", kube_router.ROLE)
    _create(plane, f"{_RBAC}/clusterrolebindings", kube_router.BINDING)


def _create(plane: ControlPlane, path: str, body: kubelet_config.Json) -> None:
    try:
        plane.request("POST", path, body)
    except StatusError:
        plane.request(
            "GET", f"{path}/{body['metadata']['name']}"
        )  # fine if it is there, otherwise this says what is wrong


def _write_pod_link_plugin(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    plugin = directory / containerd_config.POD_LINK
    plugin.write_text(containerd_config.POD_LINK_PLUGIN)
    plugin.chmod(0o755)


def _start(lab: Lab, plane: ControlPlane, node: NodePlan, store: Path) -> None:
    config = _configure(lab, plane, node, store)
    record = Path(config.directory) / "init.json"
    write_private(record, msgspec.json.encode(config))
    first = [sys.executable, "-m", "zonewise.lab.nodes.node_init", str(record)]
    command = namespaces.command(node.namespace, [*_NAMESPACES, *first])
    processes.spawn(lab.directory, process_name(node.name), command)


def _await_held(directory: Path, nodes: Sequence[str]) -> None:
    """Until each node keeps the image store from being removed; one that has ended is reported elsewhere."""
    deadline = time.monotonic() + _HELD_WITHIN_SECONDS
    for node in nodes:
        held = directory / "nodes" / node / node_init.HOLDS
        while not held.exists() and is_running(directory, node) and time.monotonic() < deadline:
            time.sleep(0.02)


def _configure(lab: Lab, plane: ControlPlane, node: NodePlan, store: Path) -> NodeInitConfig:
    """Write the node's files, and say what its first process does."""
    directory = lab.directory / "nodes" / node.name
    (directory / "var/lib").mkdir(parents=True, exist_ok=True)
    (directory / node_init.HOLDS).unlink(missing_ok=True)  # of a predecessor
    image_store.seed(store, directory / "var/lib/containerd")
    kubeconfig = _write_credentials(plane, node, directory)
    oom = containerd_config.may_raise_oom_priority(Path("/proc/self/status").read_text())
    toml = containerd_config.config_toml(images.PAUSE, lab.directory / "cni", restrict_oom_score_adj=not oom)
    (directory / "containerd.toml").write_text(toml)
    kubelet = kubelet_config.kubelet_config(lab.name, node, directory, plane.ca_path, lab.cluster_dns)
    write_private(directory / "kubelet.json", msgspec.json.encode(kubelet))
    argv = kubelet_config.kubelet_argv(lab.binaries / "kubelet", directory / "kubelet.json", kubeconfig, node)
    return NodeInitConfig(
        node=node.name,
        directory=str(directory),
        lab_directory=str(lab.directory),
        readable=tuple(map(str, [*_readable(lab), store])),
        cgroups=tuple(map(str, cgroups.make(lab.name, node.name))),
        etc=_etc(node),
        path=_path(lab),
        containerd=_unit(lab, "containerd", node, ["containerd", "--config", str(directory / "containerd.toml")]),
        others=(_unit(lab, "kubelet", node, argv), *_kube_proxy(lab, node), *_kube_router(lab, plane, node)),
        image_store_lock=str(image_store.lock(store)),
    )


def _write_credentials(plane: ControlPlane, node: NodePlan, directory: Path) -> Path:
    """The kubelet's serving certificate, and its kubeconfig."""
    from zonewise.lab.controlplane import credentials  # noqa: PLC0415 - takes a tenth of a second

    credentials.add_server(plane.layout, directory, "kubelet", [node.name, *map(str, node.address)])
    return plane.add_user(unit_name("kubelet", node.name), *kubelet_config.node_user(node.name))


def _kube_proxy(lab: Lab, node: NodePlan) -> list[NodeUnit]:
    if lab.kube_proxy is None:
        return []
    kubeconfig = stock_proxy.kubeconfig(lab.directory)
    return [_unit(lab, KUBE_PROXY, node, stock_proxy.argv(lab.kube_proxy, kubeconfig, node.name))]


def _kube_router(lab: Lab, plane: ControlPlane, node: NodePlan) -> list[NodeUnit]:
    if lab.kube_router is None:
        return []
    argv = kube_router.argv(lab.kube_router / KUBE_ROUTER, plane.layout.kubeconfig(KUBE_ROUTER), node.name)
    return [_unit(lab, KUBE_ROUTER, node, argv)]


def _unit(lab: Lab, name: str, node: NodePlan, argv: Sequence[str]) -> NodeUnit:
    return NodeUnit(tuple(argv), str(processes.log_path(lab.directory, unit_name(name, node.name))))


def _readable(lab: Lab) -> list[Path]:
    """Programs and Python, wherever they are."""
    package = Path(zonewise.__file__).parent
    built = [lab.binaries, _runtime(lab), *([lab.kube_router] if lab.kube_router else [])]
    return [*built, Path(sys.prefix), Path(sys.base_prefix), package]


def _etc(node: NodePlan) -> dict[str, str]:
    resolver = Path("/etc/resolv.conf")
    return {
        "hostname": f"{node.name}\n",
        "hosts": kubelet_config.hosts_file(node),
        "resolv.conf": kubelet_config.resolv_conf(resolver.read_text() if resolver.exists() else ""),
        f"{CNI_DIRECTORY.removeprefix('/etc/')}/10-lab.conflist": msgspec.json.encode(
            containerd_config.cni_network(node)
        ).decode(),
    }


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def _command(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _process(name: str, pid: int) -> Process:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Process(name, pid, processes.start_time(Path(f"/proc/{pid}/stat").read_text())[1])
    return Process(name, 0, 0)
