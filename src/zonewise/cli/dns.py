"""`zonewise dns`: the cluster's DNS server. Everything is done by `zonewise.dns`."""

from __future__ import annotations

import sys
from typing import Any

import click

from zonewise.cli.options import cluster_options, health_option, log_options

HEALTH_PORT = 9153


@click.command(
    epilog="""\b
Examples:
  zonewise dns --listen 10.96.0.10                    in place of CoreDNS
  zonewise dns --port 5300 --no-forward --forwarder 10.0.0.0/8    behind CoreDNS, for the cluster's names alone
  zonewise dns --listen 169.254.20.10                 on every node
  dig @10.96.0.10 db.shop.svc.cluster.local
"""
)
@click.option("--domain", default="cluster.local", show_default=True, help="Of the cluster.")
@click.option(
    "--listen", multiple=True, metavar="ADDRESS", help="Where to answer; may be repeated.  [default: everywhere]"
)
@click.option("--port", type=click.IntRange(0, 65535), default=53, show_default=True, help="0 for any free one.")
@click.option(
    "--processes", type=click.IntRange(0, 64), default=0, help="That answer over UDP.  [default: one per core]"
)
@click.option("--ttl", type=click.IntRange(0, 3600), default=5, show_default=True, help="Of our records, in seconds.")
@click.option(
    "--pods",
    type=click.Choice(["disabled", "insecure", "verified"]),
    default="disabled",
    show_default=True,
    help="Answer 10-0-0-7.namespace.pod for no address, any address, or those of pods.",
)
@click.option("--name-endpoints-by-pod", is_flag=True, help="Endpoints without a host name are named after their pods.")
@click.option(
    "--locate",
    type=click.Choice(["ranges", "pods"]),
    default="ranges",
    show_default=True,
    help="How to find a client's node: by nodes' pod ranges, or by all pods where nodes have none.",
)
@click.option(
    "--upstream",
    multiple=True,
    metavar="ADDRESS",
    help="Who knows other names; may be repeated.  [default: resolv.conf]",
)
@click.option("--forward/--no-forward", default=True, show_default=True, help="Whether to ask others at all.")
@click.option("--cache-seconds", type=click.IntRange(0), default=30, show_default=True, help="For others' answers.")
@click.option(
    "--stale-seconds",
    type=click.IntRange(0),
    default=3600,
    show_default=True,
    help="How long an old answer is given when nobody gives a new one.",
)
@click.option(
    "--forwarder",
    multiple=True,
    metavar="RANGE",
    help="Servers whose word on whom they ask for (EDNS Client Subnet) is taken; may be repeated.",
)
@click.option(
    "--queries-per-second",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of one client over UDP, per process; it is sent to TCP beyond. 0 for no limit.",
)
@click.option(
    "--log-queries", is_flag=True, help="Log one query over UDP in 64, with its client and how it was answered."
)
@click.option(
    "--lameduck-seconds", type=click.FloatRange(0), default=5, show_default=True, help="Serve on when stopped."
)
@cluster_options
@health_option(HEALTH_PORT)
@log_options
def dns(**options: Any) -> None:
    """Answer the cluster's names by the Kubernetes DNS specification, and pass other names on.

    A headless Service with a rule (topology keys, same zone, node or region, hints, traffic distribution) is answered
    from the domain of the client's own node, as the rule says. Clients on no known node get every endpoint.

    SIGTERM ends it in good order: what was asked is answered. A new one may be started on the same port before.
    """
    from zonewise import log
    from zonewise.dns.server import forkserver

    born = forkserver.fork()  # before anything is loaded that serving processes don't need

    from zonewise.dns import app
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig

    log.configure(options["log_format"], options["log_level"])
    asked = _asked(options)
    chosen = app.controller_config(asked)
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    opened = app.open_sockets(asked)
    log.get_logger(__name__).info("listening", port=opened.port, processes=len(opened.udp))
    listen = process.HealthListen(port=options["health_port"])
    sys.exit(
        process.run(
            lambda health: app.live(access, chosen, opened, health, born),
            listen=listen,
            unready_seconds=options["lameduck_seconds"],
        )
    )


def _asked(options: dict[str, Any]) -> Any:
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
        cache_seconds=options["cache_seconds"],
        stale_seconds=options["stale_seconds"],
        log_queries=options["log_queries"],
    )
