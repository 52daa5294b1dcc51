"""The report of `zonewise explain dns`: the fields of its JSON, and the location of its client.

Scripts read these fields: they are added to, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from ipaddress import ip_address, ip_network

import msgspec

from zonewise.dns.decide.client_location import client_address, client_locations, node_addresses
from zonewise.dns.decide.record_builder import is_headless
from zonewise.dns.wire.message import Rcode
from zonewise.dns.wire.text import TextReply
from zonewise.objects import Node, Service
from zonewise.routing.report import EndpointReport, PolicyReport, TierReport
from zonewise.topology import zone_of


class ClientFoundBy(StrEnum):
    POD_RANGE = "PodRange"
    NODE_ADDRESS = "NodeAddress"
    POD_ADDRESS = "PodAddress"
    NAMED = "Named"
    NOTHING = "Nothing"


class DnsReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`passed_on`: the query for the name, or for the target of its alias, is forwarded to other servers. It is also set
    if the name does not exist in the cluster, but the resolver's last query, for the name as written, is forwarded.
    """

    name: str
    type: str
    verdict: str
    kind: str
    service: DnsServiceReport | None
    client: DnsClientReport
    policy: PolicyReport | None
    tiers: tuple[TierReport, ...]
    endpoints: tuple[EndpointReport, ...]
    answer: TextReply
    passed_on: bool
    remedies: tuple[str, ...]

    @property
    def is_answered(self) -> bool:
        return bool(self.answer.records) or (self.passed_on and self.answer.rcode != Rcode.NXDOMAIN.name)


class DnsServiceReport(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    name: str
    type: str


class DnsClientReport(msgspec.Struct, frozen=True, rename="camel"):
    """The client; `sentence` says how its node was found, or why none was."""

    who: str
    address: str = ""
    node: str = ""
    zone: str = ""
    found_by: ClientFoundBy = ClientFoundBy.NOTHING
    sentence: str = ""


def dns_service_report(service: Service) -> DnsServiceReport:
    headless = service.spec.type != "ExternalName" and is_headless(service)
    kind = "Headless" if headless else service.spec.type
    return DnsServiceReport(service.metadata.namespace, service.metadata.name, kind)


def locate_client(who: str, address: str, nodes: Sequence[Node], pods: Mapping[bytes, str]) -> DnsClientReport:
    """The node on which the server locates that address. `pods` has nodes by pod address, if it locates by pods."""
    name = client_locations(nodes, pods).node_of(address)
    node = next((node for node in nodes if node.metadata.name == name), None)
    if node is None:
        ranges = sum(bool(node.spec.pod_cidrs) for node in nodes)
        sentence = f"{address} is no node's address and in no pod range ({ranges} of {len(nodes)} nodes have one)"
        return DnsClientReport(who, address, sentence=sentence)
    found_by, sentence = _found_by(address, node, pods)
    return DnsClientReport(who, address, name, zone_of(node.metadata.labels) or "", found_by, sentence)


def client_on_node(who: str, node: Node) -> DnsClientReport:
    name = node.metadata.name
    return DnsClientReport(
        who, "", name, zone_of(node.metadata.labels) or "", ClientFoundBy.NAMED, f"asked for a client on {name}"
    )


def _found_by(address: str, node: Node, pods: Mapping[bytes, str]) -> tuple[ClientFoundBy, str]:
    packed = client_address(address)
    assert packed is not None, "a node was found for it"
    if packed in node_addresses(node):
        return ClientFoundBy.NODE_ADDRESS, f"{address} is the node's own address"
    if packed in pods:
        return ClientFoundBy.POD_ADDRESS, f"{address} is the address of a pod there"
    ranges = (ip_network(text, strict=False) for text in node.spec.pod_cidrs)
    within = next(pod_range for pod_range in ranges if ip_address(packed) in pod_range)
    return ClientFoundBy.POD_RANGE, f"{address} is in the node's pod range {within}"
