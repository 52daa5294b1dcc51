"""`zonewise proxy`: runs the node proxy, explains its rules for a Service, or removes its tables."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion
from zonewise.cli.options import cluster_options, health_option, log_options
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.kube.wire.access import ClusterAccess
    from zonewise.proxy.server import ProxyConfig

HEALTH_PORT = 10356
_LONGEST_INTERFACE = 15


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
@click.option("--masquerade-all", is_flag=True, help="Masquerade all traffic to cluster IPs.")
@click.option(
    "--measure-traffic",
    is_flag=True,
    help="Count connections and bytes per Service and zone pair; costs CPU per connection.",
)
@health_option(HEALTH_PORT)
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
    if options["init_only"]:
        _prepare()
        return
    from zonewise import log
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    settings = _settings(options)
    if options["explained"]:
        asyncio.run(_explain(access, settings, options["explained"], options["namespace"]))
    else:
        log.configure(options["log_format"], options["log_level"])
        sys.exit(_run(access, settings, options["health_port"]))


def _settings(options: dict[str, Any]) -> ProxyConfig:
    from zonewise.proxy import node_addresses
    from zonewise.proxy.server import ProxyConfig

    settings = ProxyConfig(
        node=options["node_name"] or socket.gethostname().lower(),
        all_services=options["all_services"],
        pod_ranges=_split(options["cluster_cidr"]),
        node_port_ranges=_split(options["nodeport_addresses"]),
        pods_interface=_interface(options["pod_interface"]),
        masquerade_all=options["masquerade_all"],
        measure_traffic=options["measure_traffic"],
    )
    node_addresses.check_ranges((*settings.pod_ranges, *settings.node_port_ranges))
    return settings


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


def _prepare() -> None:
    from zonewise.proxy.connection_stats import account_bytes

    account_bytes()


def _run(access: ClusterAccess, settings: ProxyConfig, health_port: int) -> int:
    from zonewise.kube.process import HealthListen, run
    from zonewise.proxy import app

    return run(lambda health: app.live(access, settings, health), listen=HealthListen(port=health_port))


async def _explain(access: ClusterAccess, settings: ProxyConfig, service: str, namespace: str) -> None:
    from zonewise.diagnostics.decide.explain.proxy import explain_on_node
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.errors import NotFound
    from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICE_NAME, SERVICES
    from zonewise.proxy.decide.targets import NodePlace
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
        annotations = (await client.get(NAMESPACES, where)).metadata.annotations
    place = NodePlace(settings.node, RoutingNodes.of(nodes), {where: annotations})
    for line in explain_on_node(found, slices, place, FAMILIES.values(), all_services=settings.all_services):
        click.echo(line)
