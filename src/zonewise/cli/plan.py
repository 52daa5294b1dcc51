"""`zonewise plan`: prints the routing of every Service today and after a change (`zonewise.planning`)."""

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
  zonewise plan                                                   every Service of the current cluster
  zonewise plan --set same-zone=Prefer -l app=shop                the effect of that annotation
  zonewise plan --lose-zone eu-1a                                 overload and clients without endpoints
  zonewise plan --add-nodes eu-1c=3 --replicas shop=12            several changes at once
  zonewise plan --gb 10000 --price 0.02 --sort cost --limit 20    with cost, the most expensive first
  zonewise plan -f dump.yaml                                      a dump instead of a cluster
"""
)
@dumps.file_option
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    help="Only Services of that namespace. [default: all namespaces]",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces (default).")
@click.option("-l", "--selector", default="", help="Only Services with these labels, in the syntax of kubectl.")
@click.option(
    "--set",
    "policies",
    multiple=True,
    metavar="POLICY=VALUE",
    help="Set a policy on the selected Services; an empty value removes it.",
)
@click.option(
    "--lose-zone",
    "lost",
    multiple=True,
    metavar="ZONE",
    shell_complete=completion.node_zones,
    help="Remove all nodes of the zone and their endpoints.",
)
@click.option("--add-nodes", "added", multiple=True, metavar="ZONE=N", help="Add N nodes to that zone.")
@click.option(
    "--replicas",
    multiple=True,
    metavar="SERVICE=N",
    help="Scale a Service to N endpoints; NAMESPACE/NAME if the name is not unique.",
)
@click.option(
    "--gb", multiple=True, metavar="[SERVICE=]GB", help="Monthly traffic in GB: of all Services together, or of one."
)
@click.option("--price", type=click.FloatRange(0), help="Price of a gigabyte that leaves its zone. [default: 0.02]")
@hints_option
@carrier_options
@click.option(
    "--mode",
    type=click.Choice(["overlay", "own"]),
    help="Writer of the slices: the stock controller (overlay) or Zonewise (own). [default: as the slices show]",
)
@click.option("--changed-only", is_flag=True, help="Only Services that a change affects.")
@click.option(
    "--sort",
    type=click.Choice(["name", "in-zone", "overload", "cost", "change"]),
    default="name",
    show_default=True,
    help="Order of the table: by name, lowest share in zone, highest overload, highest cost, or largest change of the share in zone.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Print only the first N rows of the table. [default: all]",
)
@printing.output_option("table", "wide", "json", "yaml")
@cluster_options
def plan(**options: Any) -> None:
    """Predict the routing of every Service: policy, share of traffic that stays in its zone, worst overload, slices, cost.

    With a change (--set, --lose-zone, --add-nodes, --replicas) the output shows today and after. Reads a live cluster
    once, or a dump, and changes nothing; needs neither root nor Zonewise in the cluster. Changes apply in the order of
    this help; --set applies to the Services that -n and -l select.
    """
    import msgspec

    from zonewise.planning.comparison import compare
    from zonewise.routing import HintsForm

    chosen = _chosen(options["namespace"], options["selector"])
    today = _snapshot(options)
    result = compare(
        today, _changed(today, options, chosen), chosen, _traffic(options, today), HintsForm(options["hints"])
    )
    if not result.rows:
        raise ZonewiseError(f"{_source(options)}: no Service with a selector matches; check -n and -l")
    shown = [row for row in result.rows if row.differs or not options["changed_only"]]
    match options["output"]:
        case "json" | "yaml" as form:
            printing.echo_data(msgspec.structs.replace(result, rows=tuple(shown)), form)
        case style:
            shown.sort(key=_ORDERS[options["sort"]])
            click.echo("\n".join(_lines(result, shown, options["limit"] or len(shown), wide=style == "wide")))


def _snapshot(options: dict[str, Any]) -> Snapshot:
    from zonewise.planning.data_plane import Overrides

    own = options["mode"] == "own" if options["mode"] else None
    overrides = Overrides(options["all_services"], options["zonewise_dns"])
    if options["file"] is None:
        from zonewise.diagnostics.read.plan import read_snapshot
        from zonewise.diagnostics.read.reader import read_cluster
        from zonewise.kube.client import kubeconfig

        access = kubeconfig.find(options["kubeconfig"], options["context"])
        return read_cluster(access, lambda reader: read_snapshot(reader, own=own, overrides=overrides))
    from zonewise import dump
    from zonewise.objects import Pod
    from zonewise.planning.snapshot import PLANNING_KINDS, build_from_dump, require_kinds

    source, data = _source(options), dumps.bytes_of(options["file"])
    objects = dump.read(data, source, PLANNING_KINDS)
    require_kinds(objects, source, "Node", "Service")
    # Pods are most of a dump, and say nothing that slices don't.
    pods = [] if objects["EndpointSlice"] else dump.read(data, source, {"Pod": Pod})["Pod"]
    return build_from_dump(objects, pods, own=own, overrides=overrides)


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


def _changed(snapshot: Snapshot, options: dict[str, Any], chosen: Callable[[Service], bool]) -> Snapshot:
    from zonewise.planning import whatif

    for text in options["policies"]:
        snapshot = whatif.set_policy(snapshot, *_pair("--set", text, "POLICY=VALUE"), chosen)
    for zone in options["lost"]:
        snapshot = whatif.lose_zone(snapshot, zone)
    for text in options["added"]:
        zone, number = _pair("--add-nodes", text, "ZONE=N")
        snapshot = whatif.add_nodes(snapshot, zone, _whole("--add-nodes", text, number))
    for text in options["replicas"]:
        name, number = _pair("--replicas", text, "SERVICE=N")
        snapshot = whatif.scale_service(snapshot, name, _whole("--replicas", text, number))
    return snapshot


def _traffic(options: dict[str, Any], snapshot: Snapshot) -> MonthlyTraffic | None:
    from zonewise.planning.comparison import MonthlyTraffic
    from zonewise.planning.forecast import PRICE_PER_GB
    from zonewise.planning.whatif import find_service

    if not options["gb"]:
        if options["price"] is not None:
            raise UsageError("--price needs --gb, the monthly traffic")
        return None
    total, by_service = 0.0, dict["Key", float]()
    for text in options["gb"]:
        name, _, number = text.rpartition("=")
        if not _NUMBER.fullmatch(number):
            raise UsageError(f"--gb {text}: write a number, or SERVICE=NUMBER")
        if name:
            by_service[find_service(snapshot, name, "--gb")] = float(number)
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
        raise UsageError(f"{option} {text}: {number!r} is not a whole number")
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
"""Equal rows stay in the order of their names."""


def _lines(comparison: Comparison, shown: list[ComparisonRow], limit: int, *, wide: bool) -> Iterator[str]:
    nodes = ", ".join(f"{zone} {count}" for zone, count in comparison.zones.items()) or "none"
    yield f"{sum(comparison.zones.values())} client nodes by zone: {nodes}"
    yield from (f"what if: {change}" for change in comparison.changes)
    yield ""
    with_cost = comparison.today.cost is not None
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
    yield _summary(comparison)


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
            consumers = ", ".join(part.consumers) or "no zone"
            yield f"{part.endpoints} in {part.zone or 'no zone'} for {'every zone' if consumers == '*' else consumers}"
        if planned.remedy:
            yield f"to change that: {planned.remedy}"


def _summary(comparison: Comparison) -> str:
    def totals(total: ComparisonTotal) -> str:
        cost = f", {total.cost:,.2f} a month" if total.cost is not None else ""
        return f"{printing.percent(total.in_zone)} in zone, worst overload {printing.percent(total.worst_overload)}, slices: {total.slices}{cost}"

    differ = sum(row.differs for row in comparison.rows)
    services = f"{comparison.today.services} Service{'s' if comparison.today.services != 1 else ''}"
    if not comparison.changes:
        return f"{services}: {totals(comparison.today)}"
    return (
        f"{services}, {differ} changed\n  today:   {totals(comparison.today)}\n  planned: {totals(comparison.planned)}"
    )


def _step(today: str, planned: str) -> str:
    return today if today == planned else f"{today} → {planned}"
