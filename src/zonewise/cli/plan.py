"""`zonewise plan`: what becomes of every Service, and of it after a change. `zonewise.planning` finds out, this prints it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, dumps, printing
from zonewise.cli.options import carrier_options, cluster_options, hints_option
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.objects import Key, Service
    from zonewise.planning.comparison import Comparison, ComparisonRow, ComparisonTotal, MonthlyTraffic
    from zonewise.planning.snapshot import Snapshot

_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


@click.command(
    epilog="""\b
Examples:
  zonewise plan                                                   every Service of the cluster at hand
  zonewise plan --set same-zone=Prefer -l app=shop                what that annotation would do
  zonewise plan --lose-zone eu-1a                                 who is overloaded, who is cut off
  zonewise plan --add-nodes eu-1c=3 --replicas shop=12            several changes at once
  zonewise plan --gb 10000 --price 0.02 --sort cost --limit 20    in money, the dearest
  zonewise plan -f dump.yaml                                      a dump, with no cluster
"""
)
@dumps.file_option
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    help="Only Services of that namespace. [default: all]",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Services of all namespaces; so it is without -n.")
@click.option("-l", "--selector", default="", help="Only Services with these labels, as kubectl takes them.")
@click.option(
    "--set",
    "policies",
    multiple=True,
    metavar="POLICY=VALUE",
    help="Give the chosen Services a policy; nothing after = takes it away.",
)
@click.option(
    "--lose-zone",
    "lost",
    multiple=True,
    metavar="ZONE",
    shell_complete=completion.node_zones,
    help="All nodes of the zone, and what runs there, are gone.",
)
@click.option("--add-nodes", "added", multiple=True, metavar="ZONE=N", help="N more nodes in that zone.")
@click.option(
    "--replicas",
    multiple=True,
    metavar="SERVICE=N",
    help="A Service has N endpoints; NAMESPACE/NAME where names repeat.",
)
@click.option(
    "--gb", multiple=True, metavar="[SERVICE=]GB", help="Traffic of a month: of all Services together, or of one."
)
@click.option("--price", type=click.FloatRange(0), help="Of a gigabyte that leaves its zone. [default: 0.02]")
@hints_option
@carrier_options
@click.option(
    "--mode",
    type=click.Choice(["overlay", "own"]),
    help="Who writes the slices: the stock controller, or ours. [default: as the slices show]",
)
@click.option("--changed-only", is_flag=True, help="Only Services that a change makes a difference to.")
@click.option(
    "--sort",
    type=click.Choice(["name", "in-zone", "overload", "cost", "change"]),
    default="name",
    show_default=True,
    help="The table's order: least in zone, most overload, cost or change of the share in zone first.",
)
@click.option(
    "--limit", type=click.IntRange(0), default=0, metavar="N", help="Only so many rows of the table. [default: all]"
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True
)
@cluster_options
def plan(**options: Any) -> None:
    """Say what becomes of every Service: policy, share of traffic that stays in its zone, worst overload, slices, cost.

    With a change (--set, --lose-zone, --add-nodes, --replicas) it shows today and after. It reads a live cluster once, or
    a dump, changes nothing, and needs neither root nor Zonewise in the cluster. Changes are made in the order of this
    help; --set concerns the Services that -n and -l choose.
    """
    import msgspec

    from zonewise.planning.comparison import compare
    from zonewise.routing import HintsForm

    chosen = _chosen(options["namespace"], options["selector"])
    today = _situation(options)
    found = compare(
        today, _changed(today, options, chosen), chosen, _traffic(options, today), HintsForm(options["hints"])
    )
    if not found.rows:
        raise ZonewiseError(f"{_source(options)}: no Service with a selector is chosen; look at -n and -l")
    shown = [row for row in found.rows if row.differs or not options["changed_only"]]
    match options["output"]:
        case "json" | "yaml" as form:
            printing.echo_data(msgspec.structs.replace(found, rows=tuple(shown)), form)
        case style:
            shown.sort(key=_ORDERS[options["sort"]])
            click.echo("\n".join(_lines(found, shown, options["limit"] or len(shown), wide=style == "wide")))


def _situation(options: dict[str, Any]) -> Snapshot:
    from zonewise.planning.data_plane import Overrides

    own = options["mode"] == "own" if options["mode"] else None
    told = Overrides(options["all_services"], options["zonewise_dns"])
    if options["file"] is None:
        from zonewise.diagnostics.read.plan import read_snapshot
        from zonewise.diagnostics.read.reader import read_cluster
        from zonewise.kube.client import kubeconfig

        access = kubeconfig.find(options["kubeconfig"], options["context"])
        return read_cluster(access, lambda reader: read_snapshot(reader, own=own, overrides=told))
    from zonewise import dump
    from zonewise.objects import Pod
    from zonewise.planning.snapshot import PLANNING_KINDS, build_from_dump, require_kinds

    source, data = _source(options), dumps.bytes_of(options["file"])
    objects = dump.read(data, source, PLANNING_KINDS)
    require_kinds(objects, source, "Node", "Service")
    # Pods are most of a dump, and say nothing that slices don't.
    pods = [] if objects["EndpointSlice"] else dump.read(data, source, {"Pod": Pod})["Pod"]
    return build_from_dump(objects, pods, own=own, overrides=told)


def _source(options: dict[str, Any]) -> str:
    file: str | None = options["file"]
    return "the cluster" if file is None else dumps.source_of(file)


def _chosen(namespace: str | None, selector: str) -> Callable[[Service], bool]:
    from zonewise.topology.requirement import SelectorError
    from zonewise.topology.selector_text import parse_selector

    try:
        labels = parse_selector(selector)
    except SelectorError as error:
        raise UsageError(str(error)) from error
    return lambda service: (
        (not namespace or service.metadata.namespace == namespace) and labels.matches(service.metadata.labels)
    )


def _changed(situation: Snapshot, options: dict[str, Any], chosen: Callable[[Service], bool]) -> Snapshot:
    from zonewise.planning import whatif

    for text in options["policies"]:
        situation = whatif.set_policy(situation, *_pair("--set", text, "POLICY=VALUE"), chosen)
    for zone in options["lost"]:
        situation = whatif.lose_zone(situation, zone)
    for text in options["added"]:
        zone, number = _pair("--add-nodes", text, "ZONE=N")
        situation = whatif.add_nodes(situation, zone, _whole("--add-nodes", text, number))
    for text in options["replicas"]:
        name, number = _pair("--replicas", text, "SERVICE=N")
        situation = whatif.scale_service(situation, name, _whole("--replicas", text, number))
    return situation


def _traffic(options: dict[str, Any], situation: Snapshot) -> MonthlyTraffic | None:
    from zonewise.planning.comparison import MonthlyTraffic
    from zonewise.planning.forecast import PRICE_PER_GB
    from zonewise.planning.whatif import find_service

    if not options["gb"]:
        if options["price"] is not None:
            raise UsageError("--price needs --gb: say how much traffic there is in a month")
        return None
    total, by_service = 0.0, dict["Key", float]()
    for text in options["gb"]:
        name, _, number = text.rpartition("=")
        if not _NUMBER.fullmatch(number):
            raise UsageError(f"--gb {text}: write a number, or SERVICE=NUMBER")
        if name:
            by_service[find_service(situation, name, "--gb")] = float(number)
        else:
            total = float(number)
    price = PRICE_PER_GB if options["price"] is None else options["price"]
    return MonthlyTraffic(total, by_service, price)


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"{option} {text}: write {form}")
    return name, value


def _whole(option: str, text: str, number: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise UsageError(f"{option} {text}: {number!r} is no whole number")
    return int(number)


def _cost(row: ComparisonRow) -> float:
    return row.planned.money.cost if row.planned.money else 0.0


_ORDERS: dict[str, Callable[[ComparisonRow], Any]] = {
    "name": lambda row: row.key,
    "in-zone": lambda row: row.planned.outlook.in_zone,
    "overload": lambda row: -row.planned.outlook.worst_overload,
    "cost": lambda row: -_cost(row),
    "change": lambda row: -abs(row.planned.outlook.in_zone - row.today.outlook.in_zone),
}
"""Rows that are alike stay in the order of their names."""


def _lines(found: Comparison, shown: list[ComparisonRow], limit: int, *, wide: bool) -> Iterator[str]:
    nodes = ", ".join(f"{zone} {count}" for zone, count in found.zones.items()) or "none"
    yield f"{sum(found.zones.values())} client nodes by zone: {nodes}"
    yield from (f"what if: {change}" for change in found.changes)
    yield ""
    with_cost = found.today.cost is not None
    numbers = ["IN ZONE", "OVERLOAD", "ENDPOINTS", "SLICES", *(["COST/MONTH"] if with_cost else [])]
    rows: list[list[str]] = []
    for row in shown[:limit]:
        *cells, why = _cells(row, with_cost=with_cost, wide=wide)
        first, *more = why.split("\n")
        rows.append([*cells, first])
        rows += [[*("" for _ in cells), line] for line in more]
    yield from printing.columns(["SERVICE", "POLICY", *numbers, "WHY"], rows, numbers)
    if len(shown) > limit:
        yield f"and {printing.count(len(shown) - limit, 'more Service')}"
    yield ""
    yield _sum(found)


def _cells(row: ComparisonRow, *, with_cost: bool, wide: bool) -> Iterator[str]:
    today, planned = row.today.outlook, row.planned.outlook
    yield str(row.key)
    yield _step(today.policy, planned.policy)
    yield _step(printing.percent(today.in_zone), printing.percent(planned.in_zone))
    yield _step(printing.percent(today.worst_overload), printing.percent(planned.worst_overload))
    yield _step(str(today.endpoints), str(planned.endpoints))
    yield _step(str(today.slices), str(planned.slices))
    if with_cost:
        yield _step(*(f"{side.money.cost:,.2f}" if side.money else "-" for side in (row.today, row.planned)))
    yield "\n".join(_why(row, wide=wide))


def _why(row: ComparisonRow, *, wide: bool) -> Iterator[str]:
    from zonewise.slices.decide.service_status import STOCK_DNS_LOSS

    planned = row.planned.outlook
    yield planned.sentence
    if planned.cut_off:
        yield f"! nodes that reach no endpoint: {len(planned.cut_off)}, such as {', '.join(planned.cut_off[:3])}"
    for loss in planned.losses[: None if wide else 1]:
        yield f"! {loss}" if loss == STOCK_DNS_LOSS else f"! stock proxies can't: {loss}"
    yield from (f"! {complaint}" for complaint in planned.complaints[: None if wide else 1])
    if wide:
        for part in planned.assignment:
            consumers = ", ".join(part.consumers) or "nobody"
            yield f"{part.endpoints} in {part.zone or 'no zone'} for {'every zone' if consumers == '*' else consumers}"
        if planned.remedy:
            yield f"to change that: {planned.remedy}"


def _sum(found: Comparison) -> str:
    def said(total: ComparisonTotal) -> str:
        cost = f", {total.cost:,.2f} a month" if total.cost is not None else ""
        return f"{printing.percent(total.in_zone)} in zone, worst overload {printing.percent(total.worst_overload)}, slices: {total.slices}{cost}"

    differ = sum(row.differs for row in found.rows)
    services = f"{found.today.services} Service{'s' if found.today.services != 1 else ''}"
    if not found.changes:
        return f"{services}: {said(found.today)}"
    return f"{services}, {differ} changed\n  today:   {said(found.today)}\n  planned: {said(found.planned)}"


def _step(today: str, planned: str) -> str:
    return today if today == planned else f"{today} → {planned}"
