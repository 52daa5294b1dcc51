"""`zonewise explain service`: prints where the traffic to a Service goes, and why."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, dumps, printing
from zonewise.cli.options import carrier_options, cluster_options, hints_option
from zonewise.cli.printing import Cell
from zonewise.diagnostics.decide.names import first_names
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.diagnostics.decide.explain.service_report import ClientReport, FrontendReport, ServiceReport
    from zonewise.diagnostics.read.service import ServiceQuery
    from zonewise.dump import Views
    from zonewise.routing.report import EndpointReport

_ENDPOINTS_SHOWN = 12
_CLIENTS_SHOWN = 20
_BLAMED = 3


@click.command(
    epilog="""\b
Examples:
  zonewise explain service catalog -n shop                         endpoints of each client zone
  zonewise explain service shop/catalog --from-node worker-7       clients on one node
  zonewise explain service shop/catalog --from-pod shop/web-0      one client
  zonewise explain service shop/catalog -f dump.yaml               a dump; - for stdin
"""
)
@click.argument("name", metavar="NAME", shell_complete=completion.service_names)
@click.option(
    "--from-node",
    metavar="NODE",
    help="Client: any pod on that node. [default: all nodes]",
    shell_complete=completion.node_names,
)
@click.option(
    "--from-pod", metavar="POD", shell_complete=completion.pod_names, help="Client: a pod, as NAME or NAMESPACE/NAME."
)
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    default="",
    help="Namespace of the Service and of the pod.",
)
@dumps.file_option
@hints_option
@carrier_options
@printing.output_option("text", "wide", "json", "yaml")
@cluster_options
def service(**options: Any) -> None:
    """Explain where the traffic to Service NAME goes: the rule and its source, the rules it overrides, the endpoints that
    remain and why others don't, the cause of a fallback, and what would change the answer.

    For comparison, the output says what a stock kube-proxy does with the same slices. The exit code is 1 if a client
    reaches no endpoint.
    """
    report = _report(options)
    if options["output"] in {"json", "yaml"}:
        printing.echo_data(report, options["output"])
    else:
        for line in _lines(report, wide=options["output"] == "wide"):
            click.echo(line)
    reached = all(client.gets for front in report.fronts for client in front.clients)
    sys.exit(0 if report.fronts and reached else 1)


def _report(options: dict[str, Any]) -> ServiceReport:
    from zonewise.diagnostics.read.service import explain_service, explain_service_from_dump
    from zonewise.objects import Pod
    from zonewise.planning.snapshot import PLANNING_KINDS

    if options["from_node"] and options["from_pod"]:
        raise UsageError("use only one of --from-node and --from-pod: there is one client")
    if options["file"] is not None:
        query = _query(options, "default")
        pods: Views = {"Pod": Pod} if query.pod else {}
        objects = dumps.read(options["file"], {**PLANNING_KINDS, **pods})
        return explain_service_from_dump(objects, dumps.source_of(options["file"]), query)
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return read_cluster(access, lambda reader: explain_service(reader, _query(options, access.namespace)))


def _query(options: dict[str, Any], usual: str) -> ServiceQuery:
    from zonewise.diagnostics.read.service import ServiceQuery
    from zonewise.objects import Key
    from zonewise.planning.data_plane import Overrides
    from zonewise.routing import HintsForm

    def key(text: str, namespace: str) -> Key:
        before, _, name = text.rpartition("/")
        return Key(before or options["namespace"] or namespace, name)

    service = key(options["name"], usual)
    return ServiceQuery(
        service=service,
        pod=key(options["from_pod"], service.namespace) if options["from_pod"] else None,
        node=options["from_node"] or "",
        overrides=Overrides(options["all_services"], options["zonewise_dns"]),
        hints=HintsForm(options["hints"]),
    )


def _lines(report: ServiceReport, *, wide: bool) -> Iterator[str]:
    """The answer, the rule, the endpoints per client, what kube-proxy would do, and what would change it."""
    client = f" from {report.client}" if report.client else ""
    yield f"{printing.styled(f'{report.namespace}/{report.name}{client}:', 'bold')} {report.verdict}"
    yield ""
    yield from _rule_lines(report)
    for front in report.fronts:
        yield from _front_lines(front, report, wide=wide)
    yield from _stock_lines(report)
    if report.remedies:
        yield ""
        yield printing.styled("To change it", "bold")
        for remedy in report.remedies:
            first, *rest = printing.wrapped(remedy, 4)
            yield f"  → {first}"
            yield from (f"    {line}" for line in rest)


def _rule_lines(report: ServiceReport) -> Iterator[str]:
    yield from printing.labelled(
        "Policy", report.asks or "none: neither an annotation nor its spec says how to route it"
    )
    mark = ("✓", "green") if report.in_force else ("✗", "yellow")
    for reason in report.policy.reasons:
        if reason.code == "NoPolicy":
            continue
        yield from printing.labelled("", reason.sentence, *mark)
        if reason.blame:
            yield from printing.labelled("", f"  because of {first_names(reason.blame, _BLAMED)}")
    for complaint in report.policy.complaints:
        yield from printing.labelled("", complaint.sentence, "!", "yellow")
    yield from printing.labelled("Data plane", report.carried)
    for loss in report.losses:
        yield from printing.labelled("", loss, "!", "yellow")
    if report.stale:
        yield from printing.labelled("", report.stale, "!", "yellow")


def _front_lines(front: FrontendReport, report: ServiceReport, *, wide: bool) -> Iterator[str]:
    yield from printing.labelled("Ports", f"{', '.join(front.ports)} over {front.family}")
    if report.client:
        yield from _tier_lines(front.clients[0])
    else:
        yield ""
        yield from _client_lines(front, wide=wide)
    shown = front.endpoints if wide else _sample(front)
    if not shown:
        return
    yield ""
    rows = [
        (
            Cell("+", "green") if endpoint.given else Cell("-", "dim"),
            endpoint.address,
            endpoint.node or "-",
            endpoint.zone or "-",
            Cell(endpoint.why, "" if endpoint.given else "dim"),
        )
        for endpoint in shown
    ]
    yield from printing.columns(("", "ENDPOINT", "NODE", "ZONE", ""), rows)
    if len(shown) < len(front.endpoints):
        yield printing.styled(f"    and {len(front.endpoints) - len(shown)} more: -o wide", "dim")


def _sample(front: FrontendReport) -> list[EndpointReport]:
    """Some of each zone and reason, so that a few excluded endpoints show among many included ones."""
    if len(front.endpoints) <= _ENDPOINTS_SHOWN:
        return list(front.endpoints)
    kinds = {(endpoint.zone, endpoint.why) for endpoint in front.endpoints}
    most = max(1, _ENDPOINTS_SHOWN // len(kinds))
    counts = Counter[tuple[str, str]]()
    sample: list[EndpointReport] = []
    for endpoint in front.endpoints:
        counts[endpoint.zone, endpoint.why] += 1
        if counts[endpoint.zone, endpoint.why] <= most and len(sample) < 2 * _ENDPOINTS_SHOWN:
            sample.append(endpoint)
    return sample


def _tier_lines(client: ClientReport) -> Iterator[str]:
    """One client: each tier of the rule, and the one that gave the answer."""
    yield from printing.labelled("Client", f"in zone {client.zone or '(none)'}: {client.sentence}")
    if client.blame:
        yield from printing.labelled("", f"  because of {', '.join(client.blame[:_BLAMED])}")
    for tier in client.tiers:
        where = "every client" if tier.key == "*" else f"{tier.key}={tier.domain or '(none)'}"
        outcome = "nothing beyond" if tier.wall else "gave the answer" if tier.won else "passed over"
        mark = ("|", "yellow") if tier.wall else ("✓", "green") if tier.won else ("-", "dim")
        yield from printing.labelled("", f"{where}: {printing.count(tier.endpoints, 'endpoint')}, {outcome}", *mark)


def _client_lines(front: FrontendReport, *, wide: bool) -> Iterator[str]:
    ready = front.ready or len(front.endpoints)
    shown = front.clients if wide else front.clients[:_CLIENTS_SHOWN]
    rows = []
    for client in shown:
        degraded = not client.gets or client.fell_back
        rows.append(
            (
                client.zone or "(no zone)",
                str(len(client.nodes)),
                Cell(f"{client.gets} of {ready}", "" if client.gets else "red"),
                Cell(
                    printing.percent(client.in_zone) if client.gets else "-", "green" if client.in_zone == 1.0 else ""
                ),
                Cell(f"! {client.sentence}" if degraded else client.sentence, "yellow" if degraded else ""),
            )
        )
    yield from printing.columns(("CLIENTS IN", "NODES", "GET", "IN ZONE", "WHY"), rows, ("NODES", "GET", "IN ZONE"))
    if len(shown) < len(front.clients):
        yield printing.styled(f"and {len(front.clients) - len(shown)} more kinds of clients: -o wide", "dim")


def _stock_lines(report: ServiceReport) -> Iterator[str]:
    clients = [client for front in report.fronts for client in front.clients]
    if not clients:
        return
    yield ""
    program = clients[0].stock.program
    differing = [client for client in clients if not client.stock.same]
    if not differing:
        same = "same as above" if report.carrier == "KubeProxy" else "the same with these slices"
        yield from printing.labelled("Stock", f"{program}: {same}")
    zones_by_sentence: dict[str, list[str]] = {}
    for client in differing:
        gets = printing.count(len(client.stock.addresses), "endpoint")
        sentence = f"{client.stock.program} would use {gets}{{}}: {client.stock.sentence}"
        zones_by_sentence.setdefault(sentence, []).append(client.zone or "no zone")
    for index, (sentence, zones) in enumerate(zones_by_sentence.items()):
        where = "" if report.client else f" in {', '.join(dict.fromkeys(zones))}"
        yield from printing.labelled("" if index else "Stock", sentence.replace("{}", where, 1))
