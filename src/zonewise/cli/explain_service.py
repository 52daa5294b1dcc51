"""`zonewise explain service`: where a Service's traffic goes, and why. `zonewise.diagnostics` finds out, this prints it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, dumps, printing
from zonewise.cli.options import carrier_options, cluster_options, hints_option
from zonewise.cli.printing import Cell
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
  zonewise explain service catalog -n shop                         who gets which endpoints, zone by zone
  zonewise explain service shop/catalog --from-node worker-7       the clients of one node
  zonewise explain service shop/catalog --from-pod shop/web-0      one client
  zonewise explain service shop/catalog -f dump.yaml               of a dump; - for stdin
"""
)
@click.argument("name", metavar="NAME", shell_complete=completion.service_names)
@click.option(
    "--from-node", metavar="NODE", help="For clients on that node only.", shell_complete=completion.node_names
)
@click.option(
    "--from-pod", metavar="POD", shell_complete=completion.pod_names, help="For that pod only: NAME or NAMESPACE/NAME."
)
@click.option(
    "-n", "--namespace", shell_complete=completion.namespace_names, default="", help="Of the Service, and of the pod."
)
@dumps.file_option
@hints_option
@carrier_options
@printing.output_option
@cluster_options
def service(**options: Any) -> None:
    """Say where the traffic to Service NAME goes, for whom and why: the rule and where it is said, what it overrides,
    which endpoints remain and why others don't, who is to blame where it falls back, and what would change it.

    Beside it stands what a stock kube-proxy does with the same slices. The exit code is 1 where a client asked for
    reaches no endpoint.
    """
    found = _found(options)
    if options["output"] in {"json", "yaml"}:
        printing.echo_data(found, options["output"])
    else:
        for line in _lines(found, wide=options["output"] == "wide"):
            click.echo(line)
    reached = all(client.gets for front in found.fronts for client in front.clients)
    sys.exit(0 if found.fronts and reached else 1)


def _found(options: dict[str, Any]) -> ServiceReport:
    from zonewise.diagnostics.read.service import explain_service, explain_service_from_dump
    from zonewise.objects import Pod
    from zonewise.planning.snapshot import PLANNING_KINDS

    if options["from_node"] and options["from_pod"]:
        raise UsageError("say one of --from-node and --from-pod: there is one client")
    if options["file"] is not None:
        inquiry = _inquiry(options, "default")
        pods: Views = {"Pod": Pod} if inquiry.pod else {}
        objects = dumps.read(options["file"], {**PLANNING_KINDS, **pods})
        return explain_service_from_dump(objects, dumps.source_of(options["file"]), inquiry)
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return read_cluster(access, lambda reader: explain_service(reader, _inquiry(options, access.namespace)))


def _inquiry(options: dict[str, Any], usual: str) -> ServiceQuery:
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


def _lines(found: ServiceReport, *, wide: bool) -> Iterator[str]:
    """The answer, the rule, who gets what, what stock would do, what would change it."""
    who = f" from {found.client}" if found.client else ""
    yield f"{printing.styled(f'{found.namespace}/{found.name}{who}:', 'bold')} {found.verdict}"
    yield ""
    yield from _rule_lines(found)
    for front in found.fronts:
        yield from _front_lines(front, found, wide=wide)
    yield from _stock_lines(found)
    if found.remedies:
        yield ""
        yield printing.styled("To change it", "bold")
        for remedy in found.remedies:
            first, *rest = printing.folded(remedy, 4)
            yield f"  → {first}"
            yield from (f"    {line}" for line in rest)


def _rule_lines(found: ServiceReport) -> Iterator[str]:
    yield from printing.told("Asks", found.asks or "nothing: neither an annotation nor its spec says how to route it")
    mark = ("✓", "green") if found.in_force else ("✗", "yellow")
    for reason in found.policy.reasons:
        if reason.code == "NoPolicy":
            continue
        yield from printing.told("", reason.sentence, *mark)
        if reason.blame:
            more = f" and {len(reason.blame) - _BLAMED} more" if len(reason.blame) > _BLAMED else ""
            yield from printing.told("", f"  because of {', '.join(reason.blame[:_BLAMED])}{more}")
    for complaint in found.policy.complaints:
        yield from printing.told("", complaint.sentence, "!", "yellow")
    yield from printing.told("Carried by", found.carried)
    for loss in found.losses:
        yield from printing.told("", loss, "!", "yellow")
    if found.stale:
        yield from printing.told("", found.stale, "!", "yellow")


def _front_lines(front: FrontendReport, found: ServiceReport, *, wide: bool) -> Iterator[str]:
    yield from printing.told("Ports", f"{', '.join(front.ports)} over {front.family}")
    if found.client:
        yield from _step_lines(front.clients[0])
    else:
        yield ""
        yield from _client_lines(front, wide=wide)
    shown = front.endpoints if wide else _some(front)
    if not shown:
        return
    yield ""
    rows = [
        (
            Cell("+", "green") if each.given else Cell("-", "dim"),
            each.address,
            each.node or "-",
            each.zone or "-",
            Cell(each.why, "" if each.given else "dim"),
        )
        for each in shown
    ]
    yield from printing.columns(("", "ENDPOINT", "NODE", "ZONE", ""), rows)
    if len(shown) < len(front.endpoints):
        yield printing.styled(f"    and {len(front.endpoints) - len(shown)} more: -o wide", "dim")


def _some(front: FrontendReport) -> list[EndpointReport]:
    """Some of each kind, so that whoever is left out is seen among many that are not."""
    if len(front.endpoints) <= _ENDPOINTS_SHOWN:
        return list(front.endpoints)
    kinds = {(each.zone, each.why) for each in front.endpoints}
    most = max(1, _ENDPOINTS_SHOWN // len(kinds))
    seen = Counter[tuple[str, str]]()
    kept: list[EndpointReport] = []
    for each in front.endpoints:
        seen[each.zone, each.why] += 1
        if seen[each.zone, each.why] <= most and len(kept) < 2 * _ENDPOINTS_SHOWN:
            kept.append(each)
    return kept


def _step_lines(client: ClientReport) -> Iterator[str]:
    """One client: each step of the rule, and the one that gave the answer."""
    yield from printing.told("Client", f"in zone {client.zone or '(none)'}: {client.sentence}")
    if client.blame:
        yield from printing.told("", f"  because of {', '.join(client.blame[:_BLAMED])}")
    for tier in client.tiers:
        where = "every client" if tier.key == "*" else f"{tier.key}={tier.domain or '(none)'}"
        outcome = "nothing beyond" if tier.wall else "gave the answer" if tier.won else "passed over"
        mark = ("|", "yellow") if tier.wall else ("✓", "green") if tier.won else ("-", "dim")
        yield from printing.told("", f"{where}: {printing.count(tier.endpoints, 'endpoint')}, {outcome}", *mark)


def _client_lines(front: FrontendReport, *, wide: bool) -> Iterator[str]:
    ready = front.ready or len(front.endpoints)
    shown = front.clients if wide else front.clients[:_CLIENTS_SHOWN]
    rows = []
    for client in shown:
        amiss = not client.gets or client.fell_back
        rows.append(
            (
                client.zone or "(no zone)",
                str(len(client.nodes)),
                Cell(f"{client.gets} of {ready}", "" if client.gets else "red"),
                Cell(
                    printing.percent(client.in_zone) if client.gets else "-", "green" if client.in_zone == 1.0 else ""
                ),
                Cell(f"! {client.sentence}" if amiss else client.sentence, "yellow" if amiss else ""),
            )
        )
    yield from printing.columns(("CLIENTS IN", "NODES", "GET", "IN ZONE", "WHY"), rows, ("NODES", "GET", "IN ZONE"))
    if len(shown) < len(front.clients):
        yield printing.styled(f"and {len(front.clients) - len(shown)} more kinds of clients: -o wide", "dim")


def _stock_lines(found: ServiceReport) -> Iterator[str]:
    clients = [client for front in found.fronts for client in front.clients]
    if not clients:
        return
    yield ""
    program = clients[0].stock.program
    differing = [client for client in clients if not client.stock.same]
    if not differing:
        same = "that is what it does" if found.carrier == "KubeProxy" else "the same with these slices"
        yield from printing.told("Stock", f"{program}: {same}")
    by_words: dict[str, list[str]] = {}
    for client in differing:
        gets = printing.count(len(client.stock.addresses), "endpoint")
        words = f"{client.stock.program} would use {gets}{{}}: {client.stock.sentence}"
        by_words.setdefault(words, []).append(client.zone or "no zone")
    for place, (words, zones) in enumerate(by_words.items()):
        where = "" if found.client else f" in {', '.join(dict.fromkeys(zones))}"
        yield from printing.told("" if place else "Stock", words.replace("{}", where, 1))
