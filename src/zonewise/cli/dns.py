"""`zonewise dns`: options and start of the cluster's DNS server (`zonewise.dns`)."""

from __future__ import annotations

import sys
from typing import Any

import click

from zonewise.cli.options import cluster_options, health_options, listen, log_options

HEALTH_PORT = 9153


@click.command(
    epilog="""\b
Examples:
  zonewise dns --listen 10.96.0.10                    instead of CoreDNS
  zonewise dns --port 5300 --no-forward --forwarder 10.0.0.0/8    behind CoreDNS, for cluster names only
  zonewise dns --listen 169.254.20.10                 on every node
  dig @10.96.0.10 db.shop.svc.cluster.local
"""
)
@click.option("--domain", default="cluster.local", show_default=True, help="Cluster domain.")
@click.option(
    "--listen", multiple=True, metavar="ADDRESS", help="Address to listen on; may be repeated.  [default: all]"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=53,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--processes",
    type=click.IntRange(0, 64),
    default=0,
    help="Number of UDP worker processes.  [default: one per core]",
)
@click.option(
    "--ttl", type=click.IntRange(0, 3600), default=5, show_default=True, help="TTL of cluster records in seconds."
)
@click.option(
    "--pods",
    type=click.Choice(["disabled", "insecure", "verified"]),
    default="disabled",
    show_default=True,
    help="Answer names such as 10-0-0-7.NAMESPACE.pod for no address, any address, or addresses of pods only.",
)
@click.option("--name-endpoints-by-pod", is_flag=True, help="Name endpoints without a host name after their pods.")
@click.option(
    "--locate",
    type=click.Choice(["ranges", "pods"]),
    default="ranges",
    show_default=True,
    help="How to find a client's node: by the pod ranges of nodes, or by watching all pods if nodes have none.",
)
@click.option(
    "--upstream",
    multiple=True,
    metavar="ADDRESS",
    help="Server for names outside the cluster; may be repeated.  [default: resolv.conf]",
)
@click.option(
    "--forward/--no-forward",
    default=True,
    show_default=True,
    help="Forward names outside the cluster to upstream servers.",
)
@click.option(
    "--cache-seconds",
    type=click.IntRange(0),
    default=30,
    show_default=True,
    help="Longest time in seconds for which upstream answers are cached.",
)
@click.option(
    "--stale-seconds",
    type=click.IntRange(0),
    default=3600,
    show_default=True,
    help="Seconds for which an expired answer is served while no upstream responds.",
)
@click.option(
    "--forwarder",
    multiple=True,
    metavar="RANGE",
    help="Address range of forwarders whose EDNS Client Subnet is trusted; may be repeated.",
)
@click.option(
    "--queries-per-second",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="UDP rate limit per client and process; beyond it, clients are sent to TCP. 0 for no limit.",
)
@click.option(
    "--forwards-per-second",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="UDP queries for names outside the cluster per client and process; beyond it, clients are sent to TCP. 0 for no limit.",
)
@click.option("--log-queries", is_flag=True, help="Log one of 64 UDP queries, with client and answer.")
@click.option(
    "--lameduck-seconds",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds to keep serving after SIGTERM, while /readyz fails: until then, proxies forget UDP flows to this server.",
)
@cluster_options
@health_options(HEALTH_PORT)
@log_options
def dns(**options: Any) -> None:
    """Answer cluster names by the Kubernetes DNS specification, and forward other names.

    Headless Services with a topology rule (topology keys, same zone, node or region, hints, traffic distribution) are
    answered with the endpoints that the rule selects for the client's node. A client on no known node gets every endpoint.

    On SIGTERM pending queries are answered before the process ends. A new process may be started on the same port before.
    """
    from zonewise import log
    from zonewise.dns.server import forkserver

    fork_server = forkserver.fork()  # before anything is imported that workers do not need

    from zonewise.dns import app
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig

    log.configure(options["log_format"], options["log_level"])
    dns_options = _dns_options(options)
    config = app.controller_config(dns_options)
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    listen_sockets = app.open_sockets(dns_options)
    log.get_logger(__name__).info("listening", port=listen_sockets.port, processes=len(listen_sockets.udp))
    sys.exit(
        process.run(
            lambda health: app.live(access, config, listen_sockets, health, fork_server),
            listen=listen(options, access),
            unready_seconds=options["lameduck_seconds"],
        )
    )


def _dns_options(options: dict[str, Any]) -> Any:
    from zonewise.dns.app import DnsOptions

    return DnsOptions(
        domain=options["domain"],
        listen=options["listen"],
        port=options["port"],
        processes=options["processes"],
        ttl=options["ttl"],
        pods=options["pods"],
        name_endpoints_by_pod=options["name_endpoints_by_pod"],
        locate=options["locate"],
        upstreams=options["upstream"],
        forward=options["forward"],
        forwarders=options["forwarder"],
        queries_per_second=options["queries_per_second"],
        forwards_per_second=options["forwards_per_second"],
        cache_seconds=options["cache_seconds"],
        stale_seconds=options["stale_seconds"],
        log_queries=options["log_queries"],
    )
