"""`zonewise status`: prints the state of a cluster once, or again and again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import dumps, printing
from zonewise.cli.options import cluster_options, hints_option
from zonewise.cli.printing import Cell

if TYPE_CHECKING:
    from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot
    from zonewise.diagnostics.decide.status.report import ClusterStatus
    from zonewise.diagnostics.decide.status.traffic import ByteCounters

_SHOWN = 5
_STATES = {
    "InForce": ("policy in force", "green"),
    "NotInForce": ("policy not in force", "yellow"),
    "CutOff": ("cut clients off", "red"),
    "Unserved": ("without endpoints", "yellow"),
    "NotAsked": ("no policy", ""),
}


@click.command(
    epilog="""\b
Examples:
  zonewise status                 components, leaders, Services, traffic, budgets, volumes
  zonewise status -w              the same, refreshed every 5 seconds
  zonewise status -o json         every Service with its state and reason
  zonewise status -f dump.yaml    a dump instead of a cluster
"""
)
@click.option("-w", "--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(0.5, 3600),
    default=5.0,
    show_default=True,
    help="Seconds between refreshes, with -w.",
)
@click.option(
    "--traffic/--no-traffic", default=True, help="Read the traffic counters of the node proxies.", show_default=True
)
@hints_option
@dumps.file_option
@printing.output_option("text", "wide", "json", "yaml")
@cluster_options
def status(**options: Any) -> None:
    """Show the state of the cluster: components and leaders, Services by the state of their policy, traffic between zones
    as measured by the node proxies, budgets, volumes per domain, and takeovers.

    Reads only. Traffic counters are read from the proxies' pods through the API server. Objects that you may not read are
    left out, with a note. The exit code is 1 if something needs attention.
    """
    if options["file"] is not None:
        report = _of_dump(options["file"], options["hints"])
        _show(report, options["output"], {}, 0.0)
        sys.exit(1 if report.troubles else 0)
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    try:
        sys.exit(asyncio.run(_live(access, options)))
    except KeyboardInterrupt:
        sys.exit(0)


async def _live(access: Any, options: Mapping[str, Any]) -> int:
    from zonewise.diagnostics.decide.status.assemble import build_status
    from zonewise.diagnostics.read.reader import ClusterReader
    from zonewise.diagnostics.read.status import read_cluster_snapshot
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.errors import ApiError
    from zonewise.routing import HintsForm

    async with Client(access, wait_for_server=False) as client:
        before: ClusterSnapshot | None = None
        read_at = 0.0
        while True:
            now = asyncio.get_running_loop().time()
            try:
                snapshot = await read_cluster_snapshot(ClusterReader(client), traffic=options["traffic"])
            except ApiError as error:
                if before is None:
                    raise
                click.echo(f"{error}; retrying", err=True)  # it was there, and may come back
                await asyncio.sleep(options["every"])
                continue
            report = build_status(snapshot, datetime.now(UTC), HintsForm(options["hints"]))
            fresh = snapshot.traffic.since(before.traffic) if before else {}
            if options["watch"] and sys.stdout.isatty() and options["output"] in {"text", "wide"}:
                click.clear()
            _show(report, options["output"], fresh, now - read_at)
            if not options["watch"]:
                return 1 if report.troubles else 0
            before, read_at = snapshot, now
            await asyncio.sleep(options["every"])


def _of_dump(file: str, hints: str) -> ClusterStatus:
    from zonewise.diagnostics.decide.from_dump import STATUS_KINDS, snapshot_from_dump
    from zonewise.diagnostics.decide.status.assemble import build_status
    from zonewise.routing import HintsForm

    snapshot = snapshot_from_dump(dumps.read(file, STATUS_KINDS), dumps.source_of(file))
    return build_status(snapshot, datetime.now(UTC), HintsForm(hints))


def _show(report: ClusterStatus, form: str, fresh: ByteCounters, seconds: float) -> None:
    if form in {"json", "yaml"}:
        printing.echo_data(report, form)
        return
    click.echo("\n".join(_lines(report, wide=form == "wide", fresh=fresh, seconds=seconds)))


def _lines(report: ClusterStatus, *, wide: bool, fresh: ByteCounters, seconds: float) -> Iterator[str]:
    where = f"{report.server} {report.version}".strip()
    if where:
        yield f"{printing.styled(where, 'bold')}{f'  {report.at}' if report.version else ''}"  # a dump is of its own time
    yield f"{printing.styled(*_tick(not report.troubles))} {report.sentence}"
    yield ""
    yield from _runtime_lines(report)
    yield from _zone_lines(report)
    yield from _service_lines(report, wide=wide)
    yield from _traffic_lines(report, fresh, seconds)
    yield from _budget_lines(report, wide=wide)
    yield from _storage_lines(report)
    yield from (f"{printing.styled('not read', 'dim')}    {line}" for line in report.unread)
    if report.troubles:
        yield ""
        for trouble in report.troubles:
            first, *rest = printing.wrapped(trouble.sentence, 2)
            yield f"{printing.styled('!', 'yellow')} {first}"
            yield from (f"  {line}" for line in rest)
            yield f"  → {trouble.remedy}"


def _runtime_lines(status: ClusterStatus) -> Iterator[str]:
    rows: list[tuple[Cell | str, ...]] = []
    for component in status.components:
        workload = f"{component.kind} in {component.namespace}"
        rows.append((_tick(component.healthy), component.name, f"{component.ready}/{component.wanted}", workload))
    for leader in status.leaders:
        renewed = "never" if leader.silent_seconds is None else f"{leader.silent_seconds:.0f} s ago"
        holder = f"led by {leader.holder}" if leader.holder else "no leader"
        rows.append((_tick(leader.alive), leader.duty or leader.lease, renewed, holder))
    for webhook in status.webhooks:
        endpoints = "by URL" if webhook.endpoints is None else f"{webhook.endpoints} up"
        rows.append((_tick(webhook.healthy), webhook.name, endpoints, f"{webhook.target}, {webhook.failure_policy}"))
    if not rows:
        yield printing.styled("Zonewise is not installed: run `zonewise install`", "dim")
    else:
        yield from printing.columns(("", "COMPONENT", "", ""), rows)
    yield ""


def _tick(healthy: bool) -> Cell:
    return Cell("✓", "green") if healthy else Cell("✗", "red")


def _zone_lines(status: ClusterStatus) -> Iterator[str]:
    rows = [
        (
            zone.name or "(no zone)",
            zone.region or "-",
            f"{zone.ready}/{zone.nodes}",
            f"{zone.cpu_millis / 1000:g}",
            Cell("drained", "yellow") if zone.drained else "",
        )
        for zone in status.zones
    ]
    if rows:
        yield from printing.columns(("ZONE", "REGION", "NODES", "CPU", ""), rows, ("NODES", "CPU"))
        yield ""


def _service_lines(status: ClusterStatus, *, wide: bool) -> Iterator[str]:
    counted = [
        printing.styled(f"{number} {_STATES[state][0]}", _STATES[state][1])
        for state, number in status.states.items()
        if number
    ]
    yield f"{'Services':<12}{len(status.services)}: {', '.join(counted)}" if counted else f"{'Services':<12}none"
    problems = [service for service in status.services if service.state not in {"InForce", "NotAsked"}]
    shown = problems if wide else problems[:_SHOWN]
    if shown:
        rows = [
            ("", str(service.outlook.key), service.outlook.policy, _STATES[service.state][0], service.outlook.sentence)
            for service in shown
        ]
        yield from printing.columns(("", "", "", "", ""), rows)
    if len(shown) < len(problems):
        yield printing.styled(f"   and {len(problems) - len(shown)} more: -o wide", "dim")


def _traffic_lines(report: ClusterStatus, fresh: ByteCounters, seconds: float) -> Iterator[str]:
    traffic = report.traffic
    if not traffic.proxies:
        why = f": {traffic.problem}" if traffic.problem else ": no Zonewise proxy runs"
        yield from printing.labelled("Traffic", f"not measured{why}")
        return
    sources = f"{traffic.answered} of {printing.count(traffic.proxies, 'proxy', 'proxies')}"
    if traffic.share is None:
        yield from printing.labelled("Traffic", f"none between zones yet, by {sources}")
        return
    share, crossed = printing.percent(traffic.share), printing.size(traffic.cross_zone)
    yield from printing.labelled("Traffic", f"{share} in its zone, {crossed} crossed, since {sources} started")
    if fresh and seconds:
        from zonewise.diagnostics.decide.status.traffic import InZoneShare, share_by_service

        shared = share_by_service(fresh, (zone.name for zone in report.zones)).values()
        now = InZoneShare(sum(service.in_zone for service in shared), sum(service.cross_zone for service in shared))
        if now.share is not None:
            rate = f"{printing.size(now.cross_zone / seconds)}/s across"
            yield from printing.labelled("", f"now {printing.percent(now.share)} in its zone, {rate}")
    crossing = [flow for flow in traffic.flows if flow.client_zone != flow.endpoint_zone and flow.bytes]
    for flow in sorted(crossing, key=lambda flow: -flow.bytes)[:_SHOWN]:
        pair = f"{flow.client_zone or '(unknown)'} → {flow.endpoint_zone or '(unknown)'}"
        yield from printing.labelled("", f"{pair}  {printing.size(flow.bytes)}")


def _budget_lines(status: ClusterStatus, *, wide: bool) -> Iterator[str]:
    if not status.budgets:
        return
    yield ""
    rows = []
    for budget in status.budgets if wide else status.budgets[: 2 * _SHOWN]:
        domains = ", ".join(f"{domain.name or '(all)'} {domain.healthy}/{domain.pods}" for domain in budget.domains)
        leaving = f"; leaving: {', '.join(budget.charged[:_SHOWN])}" if budget.charged else ""
        rows.append(
            (
                f"{budget.namespace}/{budget.name}",
                Cell(str(budget.allowed), "" if budget.allowed else "yellow"),
                f"{budget.healthy}/{budget.pods}",
                str(budget.desired),
                f"{domains}{leaving}",
            )
        )
    yield from printing.columns(
        ("BUDGET", "ALLOWED", "HEALTHY", "DESIRED", "BY DOMAIN"), rows, ("ALLOWED", "HEALTHY", "DESIRED")
    )
    if len(rows) < len(status.budgets):
        yield printing.styled(f"and {len(status.budgets) - len(rows)} more: -o wide", "dim")


def _storage_lines(status: ClusterStatus) -> Iterator[str]:
    if status.volumes:
        yield ""
        rows = [
            (volumes.domain, f"{volumes.bound}/{volumes.volumes}", printing.size(volumes.bytes), str(volumes.nodes), "")
            for volumes in status.volumes
        ]
        yield from printing.columns(("VOLUMES IN", "BOUND", "SIZE", "NODES", ""), rows, ("BOUND", "SIZE", "NODES"))
    for takeover in status.takeovers:
        by = f"{', '.join(takeover.targets) or 'other domains'} ({printing.count(takeover.nodes, 'node')})"
        yield from printing.labelled("Takeover", f"{takeover.domain} is served by {by}", "!", "yellow")
