"""`zonewise explain dns`: prints the DNS answer a client gets for a name, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, printing
from zonewise.cli.options import cluster_options
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.diagnostics.decide.explain.dns_report import DnsReport
    from zonewise.diagnostics.read.dns import DnsQuery
    from zonewise.routing.report import EndpointReport, TierReport

TYPES = ("A", "AAAA", "SRV", "CNAME", "PTR", "TXT", "NS", "SOA")


@click.command(
    epilog="""\b
Examples:
  zonewise explain dns db.shop.svc.cluster.local --from-pod shop/web-0
  zonewise explain dns db --from-pod web-0 -n shop            a short name, as the pod uses it
  zonewise explain dns db.shop --from-node worker-7           clients on that node
  zonewise explain dns _sql._tcp.db.shop.svc.cluster.local --type SRV --from-ip 10.0.3.17
  zonewise explain dns db.shop --from-pod shop/web-0 -o json
"""
)
@click.argument("name")
@click.option(
    "--from-pod", metavar="POD", shell_complete=completion.pod_names, help="Client: a pod, as NAME or NAMESPACE/NAME."
)
@click.option("--from-node", metavar="NODE", shell_complete=completion.node_names, help="Client: any pod on that node.")
@click.option("--from-ip", metavar="ADDRESS", help="Client: an IP address.")
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    default="",
    help="Namespace of the pod; short names are looked up there first.",
)
@click.option("--type", "type_", type=click.Choice(TYPES), help="Record type. [default: A, or PTR for a reverse name]")
@click.option(
    "--domain", default="cluster.local", show_default=True, help="Cluster domain; must match the server's flag."
)
@click.option("--ttl", type=click.IntRange(0, 3600), default=5, show_default=True, help="Must match the server's flag.")
@click.option(
    "--pods",
    type=click.Choice(["disabled", "insecure", "verified"]),
    default="disabled",
    show_default=True,
    help="Must match the server's flag.",
)
@click.option(
    "--locate",
    type=click.Choice(["ranges", "pods"]),
    default="ranges",
    show_default=True,
    help="Must match the server's flag.",
)
@printing.output_option("text", "json")
@cluster_options
def dns(**options: Any) -> None:
    """Explain the answer for NAME: the Service and its rule, the client's location, and the endpoints that remain.

    Reads the cluster once and uses the code of the DNS server; no server needs to run. The exit code is 1 if there is no
    answer.
    """
    from zonewise.diagnostics.read.dns import explain_name
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    query = _query(options, access.namespace)

    result = read_cluster(access, lambda reader: explain_name(reader, query))
    if options["output"] == "json":
        printing.echo_data(result, "json")
    else:
        click.echo("\n".join(_lines(result)))
    sys.exit(0 if result.is_answered else 1)


def _query(options: dict[str, Any], namespace: str) -> DnsQuery:
    from zonewise.diagnostics.read.dns import DnsQuery
    from zonewise.dns.app import domain_of
    from zonewise.dns.decide.pod_records import PodNameRecords
    from zonewise.dns.decide.record_builder import ClusterDomain
    from zonewise.dns.decide.zone import ZoneConfig
    from zonewise.dns.wire.message import RecordType

    if sum(bool(options[flag]) for flag in ("from_pod", "from_node", "from_ip")) > 1:
        raise UsageError("use only one of --from-pod, --from-node and --from-ip: there is one client")
    before, _, pod = (options["from_pod"] or "").rpartition("/")
    return DnsQuery(
        options["name"],
        before or options["namespace"] or namespace,
        ZoneConfig(ClusterDomain(domain_of(options["domain"]), options["ttl"]), PodNameRecords(options["pods"])),
        RecordType[options["type_"]] if options["type_"] else None,
        pod,
        options["from_node"] or "",
        options["from_ip"] or "",
        options["locate"] == "pods",
    )


def _lines(report: DnsReport) -> Iterator[str]:
    """The answer, the rules, the facts, what would change it."""
    yield f"{report.name} {report.type} for {report.client.who}: {report.verdict}"
    yield ""
    yield from _answer_lines(report)
    yield from _rule_lines(report)
    yield f"Name       {_subject(report)}"
    yield f"Client     {_location(report)}{report.client.sentence}"
    if report.endpoints:
        yield "Endpoints"
        width = max(len(endpoint.address) for endpoint in report.endpoints)
        yield from (_endpoint_line(endpoint, width) for endpoint in report.endpoints)
    yield from (f"To change it: {remedy}" for remedy in report.remedies)


def _subject(report: DnsReport) -> str:
    service = report.service
    if service is None:
        return report.kind
    title = f"{service.type} Service {service.namespace}/{service.name}"
    return title if report.kind == "Service" else f"{report.kind} of {title}"


def _answer_lines(report: DnsReport) -> Iterator[str]:
    answer = report.answer
    how = "passed on to other servers" if report.passed_on and report.is_answered else answer.rcode
    yield f"Answer     {how}{f', to be kept for {answer.ttl} s' if answer.ttl is not None else ''}"
    yield from (f"  {record.type} {record.data}" for record in answer.records)
    yield from (f"  with {record.name} {record.type} {record.data}" for record in answer.additional)


def _rule_lines(report: DnsReport) -> Iterator[str]:
    if report.policy is None:
        return
    yield f"Rule       {report.policy.source or 'none'}"
    yield from (f"  {reason.sentence}" for reason in report.policy.reasons)
    yield from (f"  note: {complaint.sentence}" for complaint in report.policy.complaints)
    yield from (f"  {_tier_line(tier)}" for tier in report.tiers)


def _tier_line(tier: TierReport) -> str:
    where = "every client" if tier.key == "*" else f"{tier.key}={tier.domain or '(none)'}"
    mark = "limits it" if tier.wall else "gave the answer" if tier.won else "did not"
    return f"{where}: {tier.endpoints} {'endpoint' if tier.endpoints == 1 else 'endpoints'}, {mark}"


def _location(report: DnsReport) -> str:
    client = report.client
    return f"node {client.node}, zone {client.zone or '(none)'}: " if client.node else "on no known node: "


def _endpoint_line(endpoint: EndpointReport, width: int) -> str:
    mark = "+" if endpoint.given else "-"
    where = f"{endpoint.node or '(no node)'}  {endpoint.zone or '(no zone)'}"
    return f"  {mark} {endpoint.address:<{width}}  {where}  {endpoint.why}"
