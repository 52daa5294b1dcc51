"""CoreDNS' recorded cases as values: clusters as its tests have them, and for each query what it replies.

A cluster is made of all objects that CoreDNS could list or found in one test with the same options. Those in namespaces
that its option `namespaces` hides are left out. A slice whose Service the test leaves out gets a headless one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import msgspec

from support.dns.cluster import FakeCluster
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.objects import EndpointSlice, Key, Service

Json = Mapping[str, Any]


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """CoreDNS' configuration. `external`: the names are those of the plugin k8s_external."""

    zones: tuple[str, ...]
    pods: str
    synced: bool
    zonal: bool
    multicluster: bool
    external: bool
    ignore_empty_service: bool
    endpoint_pod_names: bool
    namespaces: tuple[str, ...] | None = None
    local_ips: tuple[str, ...] | None = msgspec.field(name="localIPs", default=None)

    @property
    def domain(self) -> str:
        return self.zones[0]

    def shows(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces


class Row(NamedTuple):
    """A record, in lower case: names are compared without case (RFC 4343)."""

    name: str
    ttl: int
    type: str
    data: str


class Reply(NamedTuple):
    """Sections without order. SOA records are without their serial, which is the time of a change."""

    rcode: str
    truncated: bool = False
    answer: frozenset[Row] = frozenset()
    authority: frozenset[Row] = frozenset()
    additional: frozenset[Row] = frozenset()


class Case(NamedTuple):
    test: str
    type: str
    name: str
    options: Options
    kind: str
    """`reply` to the query; `hosts` that the plugin's inner function finds; glue of the zone's `servers`."""
    reply: Reply
    hosts: frozenset[str]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.test, self.type, self.name


class _Objects(NamedTuple):
    services: dict[Key, Json]
    slices: dict[Key, Json]
    pods: dict[Key, Json]
    namespaces: set[str]


class RecordedCases:
    def __init__(self, recorded: Path) -> None:
        rows = [json.loads(line) for line in recorded.read_text().splitlines()]
        self.cases = [_case(row) for row in rows]
        self._objects: dict[tuple[str, Options], _Objects] = {}
        for row, case in zip(rows, self.cases, strict=True):
            _add(self._objects.setdefault((case.test, case.options), _Objects({}, {}, {}, set())), row["objects"])

    def clusters(self, tests: Iterable[str]) -> Iterator[tuple[FakeCluster, list[Case]]]:
        """A server for each cluster of these tests, with the cases."""
        for (test, options), objects in self._objects.items():
            if test in tests:
                yield (
                    _server(options, objects),
                    [case for case in self.cases if (case.test, case.options) == (test, options)],
                )


def _case(row: Json) -> Case:
    sections = (frozenset(map(_row, row[name] or ())) for name in ("answer", "authority", "extra"))
    hosts = frozenset(host["host"] for host in row["hosts"] or ())
    reply = Reply(row["rcode"], row["truncated"], *sections)
    options = msgspec.convert(row["options"], Options)
    return Case(row["test"], row["type"], row["name"], options, row["kind"], reply, hosts)


def _row(record: Json) -> Row:
    return _comparable(record["name"], record["ttl"], record["type"], record["data"])


def _comparable(name: str, ttl: int, kind: str, data: str) -> Row:
    fields = data.lower().split()
    if kind == "SOA":
        del fields[2]
    return Row(name.lower(), ttl, kind, " ".join(fields))


def _add(objects: _Objects, seen: Json) -> None:
    for service in seen["services"] or ():
        objects.services[Key(service["Namespace"], service["Name"])] = service
    for slice_ in seen["endpoints"] or ():
        if slice_["Index"]:
            objects.slices[Key(slice_["Namespace"], slice_["Name"])] = slice_
            owner = slice_["Index"].removesuffix(f".{slice_['Namespace']}")
            absent = {"Name": owner, "Namespace": slice_["Namespace"], "ClusterIPs": ["None"]}
            objects.services.setdefault(Key(slice_["Namespace"], owner), absent)
    for pod in seen["pods"] or ():
        objects.pods[Key(pod["Namespace"], pod["Name"])] = pod
    objects.namespaces.update(seen["namespaces"] or ())


def _server(options: Options, objects: _Objects) -> FakeCluster:
    services = {key: service for key, service in objects.services.items() if options.shows(key.namespace)}
    cluster = FakeCluster(
        name=options.domain,
        namespaces=sorted({*objects.namespaces, *(key.namespace for key in services)}),
        loaded=options.synced,
        nodes_=[],
        servers=tuple(ip_address(text).packed for text in options.local_ips or ()),
        pods=PodNameRecords(options.pods),
        domain={"name_endpoints_by_pod": options.endpoint_pod_names},
    )
    if not options.synced:
        return cluster
    for key, service in services.items():
        owned = (slice_ for slice_ in objects.slices.values() if slice_["Index"] == f"{key.name}.{key.namespace}")
        cluster.put(_service(service), *(part for slice_ in owned for part in _slices(slice_)))
    for key, pod in objects.pods.items():
        cluster.apply(cluster.zone.set_pod(key, [ip_address(ip).packed for ip in pod["PodIPs"]], "node"))
    return cluster


def _service(service: Json) -> Service:
    ports = [{**port, "protocol": port.get("protocol", "TCP").upper()} for port in service.get("Ports") or ()]
    spec = {"type": service.get("Type") or "ClusterIP", "ports": ports, "externalName": service.get("ExternalName", "")}
    if addresses := service["ClusterIPs"]:
        spec |= {"clusterIP": addresses[0], "clusterIPs": addresses}
    metadata = {"name": service["Name"], "namespace": service["Namespace"]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Service)


def _slices(slice_: Json) -> Iterator[EndpointSlice]:
    """One for each family: CoreDNS' tests mix them."""
    owner = slice_["Index"].removesuffix(f".{slice_['Namespace']}")
    for family in ("IPv4", "IPv6"):
        subset = slice_["Subsets"][0]
        addresses = [one for one in subset["Addresses"] or () if ("." in one["IP"]) == (family == "IPv4")]
        ports = [
            {"name": port["Name"], "protocol": port["Protocol"].upper(), "port": port["Port"]}
            for port in subset["Ports"] or ()
            if port["Port"] >= 0
        ]
        body = {
            "metadata": {
                "name": f"{slice_['Name']}-{family.lower()}",
                "namespace": slice_["Namespace"],
                "labels": {"kubernetes.io/service-name": owner},
            },
            "addressType": family,
            "endpoints": [_endpoint(one, slice_["Zones"] or {}) for one in addresses],
            "ports": ports,
        }
        if addresses:
            yield msgspec.convert(body, EndpointSlice)


def _endpoint(address: Json, zones: Mapping[str, str]) -> dict[str, Any]:
    optional = {"hostname": address["Hostname"], "nodeName": address["NodeName"], "zone": zones.get(address["IP"], "")}
    target = {"targetRef": {"kind": "Pod", "name": address["TargetRefName"]}} if address["TargetRefName"] else {}
    return {"addresses": [address["IP"]], **{name: text for name, text in optional.items() if text}, **target}


def reply_of(message: dns.message.Message) -> Reply:
    sections = (frozenset(_rows(section)) for section in (message.answer, message.authority, message.additional))
    return Reply(dns.rcode.to_text(message.rcode()), bool(message.flags & dns.flags.TC), *sections)


def _rows(section: Iterable[dns.rrset.RRset]) -> Iterator[Row]:
    for rrset in section:
        for record in rrset:
            kind = dns.rdatatype.to_text(rrset.rdtype)
            yield _comparable(rrset.name.to_text(), rrset.ttl, kind, record.to_text())


def hosts_of(reply: Reply) -> frozenset[str]:
    """What a client connects to in the end: addresses, or names of other domains."""
    rows = {row for row in reply.answer | reply.additional if row.type in {"A", "AAAA"}}
    aliases = {row for row in reply.answer if row.type == "CNAME"}
    return frozenset(row.data.rstrip(".") for row in rows or aliases)
