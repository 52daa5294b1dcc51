"""`zonewise proxy`: runs the node proxy, explains its rules for a Service, or removes its tables."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion
from zonewise.cli.options import cluster_options, health_options, listen, log_options
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zonewise.cli.options import F
    from zonewise.kube.client.client import Client
    from zonewise.kube.process import HealthListen
    from zonewise.kube.wire.access import ClusterAccess
    from zonewise.proxy.server import ProxyConfig
    from zonewise.proxy.sysctls import ConntrackSettings

HEALTH_PORT = 10356
_LONGEST_INTERFACE = 15


def _conntrack_option(name: str, default: int, text: str, metavar: str | None = None) -> Callable[[F], F]:
    help_text = f"With --all-services: {text}"
    amount = click.IntRange(min=0)
    return click.option(name, type=amount, metavar=metavar, default=default, show_default=True, help=help_text)


@click.command(
    epilog="""\b
Examples:
  zonewise proxy --node-name $NODE_NAME           labelled Services, next to kube-proxy
  zonewise proxy --all-services                   all Services, instead of kube-proxy
  zonewise proxy --node-name zone-a-1 --explain shop/catalog    the rules of a Service on that node
  zonewise proxy --cleanup                        remove all rules from this node
"""
)
@click.option(
    "--node-name",
    default="",
    metavar="NAME",
    shell_complete=completion.node_names,
    help="Name of this node. [default: the host name]",
)
@click.option(
    "--all-services", is_flag=True, help="Serve every Service without another proxy name, instead of kube-proxy."
)
@click.option(
    "--cluster-cidr",
    default="",
    metavar="RANGES",
    help="Address ranges of pods, separated by commas. [default: the node's pod ranges]",
)
@click.option(
    "--service-cidr",
    default="",
    metavar="RANGES",
    help="Address ranges of cluster IPs, separated by commas, for API servers without ServiceCIDRs (before 1.33). If they "
    "are unknown, spec.externalIPs are served only with --all-services.",
)
@click.option(
    "--pod-interface",
    default="",
    metavar="NAME",
    help="Recognise pods by interface instead of ranges: the name of a bridge, or a prefix such as veth*.",
)
@click.option(
    "--nodeport-addresses",
    default="primary",
    metavar="RANGES",
    help="Node addresses that serve node ports: ranges separated by commas, or primary.",
    show_default=True,
)
@click.option(
    "--ignore-external-ips",
    is_flag=True,
    help="Do not serve spec.externalIPs: every author of a Service could take any address with them.",
)
@click.option("--masquerade-all", is_flag=True, help="Masquerade all traffic to cluster IPs.")
@click.option(
    "--measure-traffic",
    is_flag=True,
    help="Count connections and bytes per Service and zone pair; costs CPU per connection.",
)
@_conntrack_option("--conntrack-max-per-core", 32768, "connections to track per CPU; 0 leaves the kernel's limit.")
@_conntrack_option("--conntrack-min", 131072, "connections to track at least.")
@_conntrack_option(
    "--conntrack-tcp-timeout-established",
    86400,
    "idle time of an established TCP connection; 0 leaves the kernel's.",
    metavar="SECONDS",
)
@_conntrack_option(
    "--conntrack-tcp-timeout-close-wait",
    3600,
    "time for which a half-closed TCP connection is tracked; 0 leaves the kernel's.",
    metavar="SECONDS",
)
@click.option(
    "--kube-proxy-pages/--no-kube-proxy-pages",
    default=True,
    show_default=True,
    help="With --all-services: answer what is asked of kube-proxy, :10256/healthz (load balancers) and "
    "127.0.0.1:10249/proxyMode and /metrics.",
)
@health_options(HEALTH_PORT)
@click.option(
    "--explain",
    "explained",
    default="",
    metavar="SERVICE",
    shell_complete=completion.service_names,
    help="Print how this node routes a Service and why, then exit.",
)
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    default="",
    help="Namespace of the Service to explain.",
)
@click.option(
    "--init-only", is_flag=True, help="Prepare the node, which needs more privileges than running, then exit."
)
@click.option("--cleanup", is_flag=True, help="Remove the proxy's nftables tables, then exit.")
@cluster_options
@log_options
def proxy(**options: Any) -> None:
    """Serve Services on this node with nftables, by their topology rules.

    By default it serves Services with the label service.kubernetes.io/service-proxy-name=zonewise, next to a kube-proxy
    that serves the others. The rules stay when the process ends; --cleanup removes them.
    """
    if options["cleanup"]:
        _clean_up()
        return
    from zonewise import log

    settings = _settings(options)
    if options["init_only"]:
        log.configure(options["log_format"], options["log_level"])
        _prepare(settings)
        return
    from zonewise.kube.client import kubeconfig

    if not options["explained"]:
        log.configure(options["log_format"], options["log_level"])
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    if options["explained"]:
        asyncio.run(_explain(access, settings, options["explained"], options["namespace"]))
    else:
        sys.exit(_run(access, settings, listen(options, access)))


def _settings(options: dict[str, Any]) -> ProxyConfig:
    from zonewise.proxy import node_addresses
    from zonewise.proxy.server import ProxyConfig

    settings = ProxyConfig(
        node=options["node_name"] or socket.gethostname().lower(),
        all_services=options["all_services"],
        pod_ranges=_split(options["cluster_cidr"]),
        service_ranges=_split(options["service_cidr"]),
        node_port_ranges=_split(options["nodeport_addresses"]),
        pods_interface=_interface(options["pod_interface"]),
        masquerade_all=options["masquerade_all"],
        measure_traffic=options["measure_traffic"],
        ignore_external_ips=options["ignore_external_ips"],
        conntrack=_conntrack(options) if options["all_services"] else None,
        kube_proxy_pages=options["all_services"] and options["kube_proxy_pages"],
    )
    node_addresses.check_ranges((*settings.pod_ranges, *settings.service_ranges, *settings.node_port_ranges))
    return settings


def _conntrack(options: dict[str, Any]) -> ConntrackSettings:
    from zonewise.proxy.sysctls import ConntrackSettings

    return ConntrackSettings(
        max_per_core=options["conntrack_max_per_core"],
        minimum=options["conntrack_min"],
        established_seconds=options["conntrack_tcp_timeout_established"],
        close_wait_seconds=options["conntrack_tcp_timeout_close_wait"],
    )


def _interface(name: str) -> str:
    if len(name.rstrip("*").encode()) > _LONGEST_INTERFACE or name == "*":
        raise UsageError(f"{name!r} is not an interface: write the name of a bridge, or a prefix such as veth*")
    return name


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _clean_up() -> None:
    from zonewise.proxy.applier import clean_up
    from zonewise.proxy.nft_socket import NftSocket

    with NftSocket() as kernel:
        found = clean_up(kernel)
    click.echo(f"removed the tables of {', '.join(family.name for family in found)}" if found else "nothing to remove")


def _prepare(settings: ProxyConfig) -> None:
    from zonewise.proxy.connection_stats import account_bytes
    from zonewise.proxy.sysctls import set_conntrack

    account_bytes()
    if settings.conntrack is not None:
        set_conntrack(settings.conntrack)


def _run(access: ClusterAccess, settings: ProxyConfig, where: HealthListen) -> int:
    from zonewise.kube.process import run
    from zonewise.proxy import app

    return run(lambda health: app.live(access, settings, health), listen=where)


async def _explain(access: ClusterAccess, settings: ProxyConfig, service: str, namespace: str) -> None:
    from zonewise.diagnostics.decide.explain.proxy import explain_on_node
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.errors import NotFound
    from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICE_NAME, SERVICES
    from zonewise.proxy.decide.targets import NodeLocation
    from zonewise.proxy.wire.family import FAMILIES
    from zonewise.routing import RoutingNodes

    before, _, name = service.rpartition("/")
    where = before or namespace or access.namespace
    async with Client(access, wait_for_server=False) as client:
        try:
            found = await client.get(SERVICES, name, where)
        except NotFound:
            raise ZonewiseError(f"no Service {where}/{name}: name it as NAME -n NAMESPACE, or NAMESPACE/NAME") from None
        selector = f"{SERVICE_NAME}={name}"
        slices = (await client.list(ENDPOINT_SLICES, where, selector=selector)).items
        nodes = (await client.list(NODES)).items
        service_ranges = await _service_ranges(client, settings)
        annotations = (await client.get(NAMESPACES, where)).metadata.annotations
    location = NodeLocation(settings.node, RoutingNodes.of(nodes), {where: annotations})
    node_pod_ranges = tuple(cidr for node in nodes for cidr in node.spec.pod_cidrs)
    limits = settings.address_limits(service_ranges, node_pod_ranges)
    for line in explain_on_node(
        found, slices, location, FAMILIES.values(), limits=limits, all_services=settings.all_services
    ):
        click.echo(line)


async def _service_ranges(client: Client, settings: ProxyConfig) -> tuple[str, ...]:
    """As the server finds them; who asks may have fewer rights than the server."""
    from zonewise.kube.wire.errors import Forbidden, NotFound
    from zonewise.objects.networking import SERVICE_CIDRS
    from zonewise.proxy.service_cidrs import cidrs_of

    try:
        return cidrs_of((await client.list(SERVICE_CIDRS)).items)
    except NotFound:
        return settings.service_ranges
    except Forbidden:
        if not settings.service_ranges:
            click.echo("note: you may not list ServiceCIDRs; name the cluster's with --service-cidr", err=True)
        return settings.service_ranges
