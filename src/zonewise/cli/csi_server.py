"""`zonewise csi controller` and `zonewise csi node`: the processes of the Ceph CSI driver (`zonewise.ceph`)."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zonewise.api.names import CSI_CONFIG_MAP, SYSTEM_NAMESPACE
from zonewise.cli.options import cluster_options, health_options, listen, log_options, with_options
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.ceph.controller.auto_takeover import AutoTakeoverConfig
    from zonewise.ceph.decide.domains import DomainLabels
    from zonewise.objects import Key

CONTROLLER_PORT = 10262
NODE_PORT = 10263
CONFIG_MAP = f"{SYSTEM_NAMESPACE}/{CSI_CONFIG_MAP}"
DOMAIN_LABELS = "topology.kubernetes.io/region;topology.kubernetes.io/zone"
KUBERNETES, NONE = "kubernetes", "none"
F = TypeVar("F", bound=Callable[..., Any])

_COMMON = (
    click.option(
        "--endpoint",
        default="unix:///csi/csi.sock",
        show_default=True,
        metavar="SOCKET",
        help="Socket of the gRPC server, accessible to its owner only.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        default=Path("/etc/zonewise-csi/config.json"),
        show_default=True,
        help="Configuration file with the Ceph clusters. Reloaded when it changes.",
    ),
    click.option(
        "--orchestrator",
        type=click.Choice([KUBERNETES, NONE]),
        default=KUBERNETES,
        show_default=True,
        help="Source of the domains of nodes.",
    ),
    click.option(
        "--domain-labels",
        default=DOMAIN_LABELS,
        show_default=True,
        metavar="LABELS",
        help="Node labels whose values are domains, separated by ';', widest first.",
    ),
    click.option(
        "--config-map",
        default=CONFIG_MAP,
        show_default=True,
        metavar="NAMESPACE/NAME",
        help="ConfigMap with the takeover map.",
    ),
)


def _common_options(command: F) -> F:
    return with_options(command, _COMMON)


@click.command(
    epilog="""\b
Examples:
  zonewise csi controller --domain-labels "topology.kubernetes.io/region;topology.kubernetes.io/zone"
  zonewise csi controller --auto-takeover --takeover-after 180      take over a failed zone automatically
  zonewise csi controller --orchestrator none --endpoint unix:///tmp/csi.sock --config csi.json
"""
)
@_common_options
@click.option(
    "--auto-takeover",
    is_flag=True,
    help="Write the takeover map when a domain fails. Without it, takeovers are only proposed.",
)
@click.option(
    "--takeover-domain",
    default="",
    metavar="LABEL",
    help="Domain label watched for failures.  [default: the zone, else the last one]",
)
@click.option(
    "--takeover-after",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    help="Seconds without a ready node after which a domain has failed.",
)
@click.option(
    "--giveback-after",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Seconds with enough ready nodes after which a domain has recovered.",
)
@click.option(
    "--giveback-share",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of ready nodes that is enough for a giveback.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Watch domains only while holding the lease.",
)
@click.option("--lease-namespace", default="zonewise-system", show_default=True, help="Namespace of the lease.")
@click.option(
    "--lease-seconds", type=click.IntRange(1), default=15, show_default=True, help="Lease duration in seconds."
)
@cluster_options
@health_options(CONTROLLER_PORT)
@log_options
def controller(**options: Any) -> None:
    """Serve the CSI controller: volumes, snapshots and clones in the pool of the requested domain.

    Any number of replicas may run: the journal in Ceph creates each name once. The replica that holds the lease watches
    for failed domains.
    """
    from zonewise import log

    log.configure(options["log_format"], options["log_level"])
    sys.exit(_run_controller(options))


def _run_controller(options: dict[str, Any]) -> int:
    from zonewise.api.names import CSI_LEASE
    from zonewise.ceph import app
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig
    from zonewise.kube.manager import LeaseConfig

    build = _controller_services(options)
    if options["orchestrator"] == NONE:
        services = build(lambda _parameters, _code, _note: None)
        where = listen(options, None)
        return process.run(lambda health: app.alone(options["endpoint"], services, health), listen=where)
    settings = _takeover_settings(options)
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    lease = LeaseConfig(name=CSI_LEASE, namespace=options["lease_namespace"], lease_seconds=options["lease_seconds"])
    return process.run(
        lambda health: app.controller(
            access, options["endpoint"], settings, lease if options["leader_elect"] else None, build, health
        ),
        listen=listen(options, access),
    )


def _controller_services(options: dict[str, Any]) -> Callable[[Any], dict[str, object]]:
    from zonewise.ceph.backend.cephfs import CephFsBackend
    from zonewise.ceph.backend.cluster import CephClusters
    from zonewise.ceph.backend.rbd import RbdBackend
    from zonewise.ceph.config import CsiConfigFile
    from zonewise.ceph.controller.service import ControllerService
    from zonewise.ceph.decide.ids import VolumeKind
    from zonewise.ceph.decide.model import VolumeBackend
    from zonewise.ceph.identity import IdentityService

    clusters = CephClusters(CsiConfigFile(options["config"]))
    names = _domain_labels(options).names
    backends: dict[VolumeKind, VolumeBackend] = {VolumeKind.RBD: RbdBackend(), VolumeKind.CEPHFS: CephFsBackend()}
    return lambda announce: {
        "Identity": IdentityService(),
        "Controller": ControllerService(clusters, backends, announce, names),
    }


def _takeover_settings(options: dict[str, Any]) -> AutoTakeoverConfig:
    from zonewise.ceph.controller.auto_takeover import AutoTakeoverConfig
    from zonewise.ceph.decide.outage import OutageTiming

    labels = _domain_labels(options)
    return AutoTakeoverConfig(
        config_map=config_map_key(options["config_map"]),
        labels=labels,
        watched=_watched(labels, options["takeover_domain"]),
        timing=OutageTiming(options["takeover_after"], options["giveback_after"], options["giveback_share"]),
        writes=options["auto_takeover"],
    )


def _watched(labels: DomainLabels, label: str) -> str:
    from zonewise.ceph.decide.domains import short_name

    name = short_name(label) if label else "zone" if "zone" in labels.names else labels.names[-1]
    if name not in labels.names:
        raise UsageError(f"--takeover-domain {label!r} must be one of the domain labels {', '.join(labels.names)}")
    return name


def _domain_labels(options: dict[str, Any]) -> DomainLabels:
    from zonewise.ceph.decide.domains import DomainLabels

    return DomainLabels.parse(options["domain_labels"])


def config_map_key(text: str) -> Key:
    from zonewise.objects import Key

    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise UsageError(f"--config-map {text!r}: write it as NAMESPACE/NAME")
    return Key(namespace, name)


@click.command(
    epilog="""\b
Examples:
  zonewise csi node --node-name $NODE_NAME --registration-directory /var/lib/kubelet/plugins_registry \\
      --endpoint unix:///var/lib/kubelet/plugins/ceph.zonewise.dev/csi.sock
  zonewise csi node --orchestrator none --domain zone=zone-a --endpoint unix:///tmp/csi.sock --config csi.json
"""
)
@_common_options
@click.option("--node-name", default="", metavar="NAME", help="Name of this node. [default: the host name]")
@click.option(
    "--domain",
    "domains",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Domain of this node, with --orchestrator none; may be repeated, widest first.",
)
@click.option(
    "--registration-directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="The kubelet's directory for sockets of plugins, such as /var/lib/kubelet/plugins_registry: the driver registers "
    "itself there. Then --endpoint must be a path on the host. Without it, run node-driver-registrar beside this process.",
)
@click.option(
    "--state-directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet/plugins/ceph.zonewise.dev/node"),
    show_default=True,
    help="Directory for the records of staged volumes. It must survive restarts of this process.",
)
@click.option(
    "--mapper",
    type=click.Choice(["auto", "krbd", "rbd-nbd", "storage-daemon"]),
    default="auto",
    show_default=True,
    help="How RBD images become block devices; auto chooses the best that works on this node.",
)
@click.option(
    "--cephfs-client",
    type=click.Choice(["auto", "kernel", "fuse"]),
    default="auto",
    show_default=True,
    help="CephFS client; auto chooses the best that works on this node.",
)
@click.option(
    "--daemon-cgroup",
    default="",
    metavar="PATH",
    help="Cgroup for the daemons that serve volumes, so that they survive this container.",
)
@click.option(
    "--max-volumes",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Maximum number of volumes on this node; 0 for no limit.",
)
@cluster_options
@health_options(NODE_PORT)
@log_options
def node(**options: Any) -> None:
    """Serve the CSI node service: map, mount and unmount volumes, and advertise this node's domains and takeovers.

    Volumes stay mounted when the process ends, and the next process takes them over.
    """
    from zonewise import log

    log.configure(options["log_format"], options["log_level"])
    sys.exit(_run_node(options))


def _run_node(options: dict[str, Any]) -> int:
    from zonewise.ceph import app
    from zonewise.ceph.node.topology_labels import NodeTopology
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig

    name = options["node_name"] or socket.gethostname().lower()
    build = _node_services(options, name)
    if options["orchestrator"] == NONE:
        if options["registration_directory"]:
            raise UsageError("--registration-directory needs --orchestrator kubernetes")
        domains = _given_domains(options["domains"])
        listening = listen(options, None)
        return process.run(
            lambda health: app.alone(options["endpoint"], build(lambda: domains), health), listen=listening
        )
    if options["domains"]:
        raise UsageError("--domain needs --orchestrator none: with Kubernetes, domains come from node labels")
    registration = options["registration_directory"]
    where = NodeTopology(name, _domain_labels(options), config_map_key(options["config_map"]))
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return process.run(
        lambda health: app.node(access, options["endpoint"], registration, where, build, health),
        listen=listen(options, access),
    )


def _given_domains(texts: tuple[str, ...]) -> Mapping[str, str]:
    from zonewise.ceph.decide.domains import UNLABELLED, short_name, topology_of
    from zonewise.topology import value_problem

    segments = []
    for text in texts:
        label, equals, value = text.partition("=")
        if not (label and equals and value) or value_problem(value):
            raise UsageError(f"--domain {text!r}: write it as LABEL=VALUE, such as zone=zone-a")
        segments.append((short_name(label), value))
    return topology_of(tuple(segments)) or {UNLABELLED: "true"}


def _node_services(options: dict[str, Any], name: str) -> Callable[[Any], dict[str, object]]:
    from zonewise.ceph.backend.cluster import CephClusters
    from zonewise.ceph.config import CsiConfigFile
    from zonewise.ceph.identity import IdentityService
    from zonewise.ceph.node.service import build_node_service

    clusters = CephClusters(CsiConfigFile(options["config"]))
    return lambda segments: {
        "Identity": IdentityService(),
        "Node": build_node_service(
            clusters,
            name,
            segments,
            state_directory=options["state_directory"],
            mapper=options["mapper"],
            cephfs_client=options["cephfs_client"],
            daemon_cgroup=options["daemon_cgroup"],
            max_volumes=options["max_volumes"],
        ),
    }
