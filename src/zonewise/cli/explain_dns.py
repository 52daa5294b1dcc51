"""`zonewise explain dns`: what a client gets for a name, and why. `zonewise.diagnostics.read.dns` finds out, this prints it."""

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
  zonewise explain dns db --from-pod web-0 -n shop            the name as the pod writes it
  zonewise explain dns db.shop --from-node worker-7           any client on that node
  zonewise explain dns _sql._tcp.db.shop.svc.cluster.local --type SRV --from-ip 10.0.3.17
  zonewise explain dns db.shop --from-pod shop/web-0 -o json
"""
)
@click.argument("name")
@click.option(
    "--from-pod", metavar="POD", shell_complete=completion.pod_names, help="Who asks: a pod, as NAME or NAMESPACE/NAME."
)
@click.option(
    "--from-node", metavar="NODE", shell_complete=completion.node_names, help="Who asks: somebody on that node."
)
@click.option("--from-ip", metavar="ADDRESS", help="Who asks: whoever has that address.")
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    default="",
    help="Of the pod, and where a short name is looked up first.",
)
@click.option("--type", "type_", type=click.Choice(TYPES), help="[default: A, or PTR of a reverse name]")
@click.option("--domain", default="cluster.local", show_default=True, help="Of the cluster, as the server is told.")
@click.option("--ttl", type=click.IntRange(0, 3600), default=5, show_default=True, help="As the server is told.")
@click.option(
    "--pods",
    type=click.Choice(["disabled", "insecure", "verified"]),
    default="disabled",
    show_default=True,
    help="As the server is told.",
)
@click.option(
    "--locate",
    type=click.Choice(["ranges", "pods"]),
    default="ranges",
    show_default=True,
    help="As the server is told.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def dns(**options: Any) -> None:
    """Say what NAME is for a client, and why: which Service and rule, where the client is, which endpoints remain.

    Reads the cluster once and answers by the server's own functions; no server has to run. The exit code is 1 where
    there is no answer.
    """
    from zonewise.diagnostics.read.dns import explain_name
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    inquiry = _inquiry(options, access.namespace)

    account = read_cluster(access, lambda reader: explain_name(reader, inquiry))
    if options["output"] == "json":
        printing.echo_data(account, "json")
    else:
        click.echo("\n".join(_lines(account)))
    sys.exit(0 if account.is_answered else 1)


def _inquiry(options: dict[str, Any], namespace: str) -> DnsQuery:
    from zonewise.diagnostics.read.dns import DnsQuery
    from zonewise.dns.app import domain_of
    from zonewise.dns.decide.pod_records import PodNameRecords
    from zonewise.dns.decide.record_builder import ClusterDomain
    from zonewise.dns.decide.zone import ZoneConfig
    from zonewise.dns.wire.message import RecordType

    said = [flag for flag in ("from_pod", "from_node", "from_ip") if options[flag]]
    if len(said) > 1:
        raise UsageError("say one of --from-pod, --from-node and --from-ip: there is one client")
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


def _lines(account: DnsReport) -> Iterator[str]:
    """The answer, the rules, the facts, what would change it."""
    yield f"{account.name} {account.type} for {account.client.who}: {account.verdict}"
    yield ""
    yield from _answer_lines(account)
    yield from _rule_lines(account)
    yield f"Name       {_what(account)}"
    yield f"Client     {_where(account)}{account.client.sentence}"
    if account.endpoints:
        yield "Endpoints"
        width = max(len(each.address) for each in account.endpoints)
        yield from (_endpoint_line(each, width) for each in account.endpoints)
    yield from (f"To change it: {remedy}" for remedy in account.remedies)


def _what(account: DnsReport) -> str:
    service = account.service
    if service is None:
        return account.kind
    whole = f"{service.type} Service {service.namespace}/{service.name}"
    return whole if account.kind == "Service" else f"{account.kind} of {whole}"


def _answer_lines(account: DnsReport) -> Iterator[str]:
    answer = account.answer
    how = "passed on to other servers" if account.passed_on and account.is_answered else answer.rcode
    yield f"Answer     {how}{f', to be kept for {answer.ttl} s' if answer.ttl is not None else ''}"
    yield from (f"  {record.type} {record.data}" for record in answer.records)
    yield from (f"  with {record.name} {record.type} {record.data}" for record in answer.additional)


def _rule_lines(account: DnsReport) -> Iterator[str]:
    if account.policy is None:
        return
    yield f"Rule       {account.policy.source or 'none'}"
    yield from (f"  {reason.sentence}" for reason in account.policy.reasons)
    yield from (f"  note: {complaint.sentence}" for complaint in account.policy.complaints)
    yield from (f"  {_tier_line(tier)}" for tier in account.tiers)


def _tier_line(tier: TierReport) -> str:
    where = "every client" if tier.key == "*" else f"{tier.key}={tier.domain or '(none)'}"
    mark = "limits it" if tier.wall else "gave the answer" if tier.won else "did not"
    return f"{where}: {tier.endpoints} {'endpoint' if tier.endpoints == 1 else 'endpoints'}, {mark}"


def _where(account: DnsReport) -> str:
    client = account.client
    return f"node {client.node}, zone {client.zone or '(none)'}: " if client.node else "on no known node: "


def _endpoint_line(each: EndpointReport, width: int) -> str:
    mark = "+" if each.given else "-"
    return f"  {mark} {each.address:<{width}}  {each.node or '(no node)'}  {each.zone or '(no zone)'}  {each.why}"
