"""A small cluster for DNS tests, without an API server: its objects, and a record table that serves it.

The table gets its updates through the same bytes as a worker does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import msgspec

from zonewise.dns.decide.fast_path import FastResponder, QueryCounters, fast_responder
from zonewise.dns.decide.handler import MAX_MESSAGE_BYTES, ForwardQuery, QuerySender, respond
from zonewise.dns.decide.record_builder import ClusterDomain
from zonewise.dns.decide.table import RecordTable
from zonewise.dns.decide.zone import ClusterZone, ZoneConfig
from zonewise.dns.wire import ipc
from zonewise.dns.wire.ipc import Update
from zonewise.dns.wire.names import to_wire
from zonewise.objects import EndpointSlice, Key, Node, Service, key_of

DOMAIN = "cluster.local."
ZONES = ("zone-a", "zone-b", "zone-c")


def service(name: str, namespace: str = "shop", *, annotations: dict[str, str] | None = None, **spec: Any) -> Service:
    meta = {"name": name, "namespace": namespace, "annotations": annotations or {}}
    return msgspec.convert({"metadata": meta, "spec": spec}, Service)


def headless(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Service:
    return service(name, annotations=annotations, clusterIP="None", clusterIPs=["None"], **spec)


def endpoint(address: str | list[str], node: str | None = None, **more: Any) -> dict[str, Any]:
    """On a node named after its zone, as `nodes` makes them."""
    addresses = [address] if isinstance(address, str) else address
    location = {"nodeName": node, "zone": node.rsplit("-", 1)[0]} if node else {}
    return {"addresses": addresses, **location, **more}


def slice_of(
    owner: str,
    endpoints: list[dict[str, Any]],
    ports: Iterable[tuple[str, str, int]] = (("http", "TCP", 8080),),
    *,
    family: str = "IPv4",
    name: str = "",
) -> EndpointSlice:
    meta = {"name": name or f"{owner}-{family}", "namespace": "shop", "labels": {"kubernetes.io/service-name": owner}}
    port_list = [{"name": port, "protocol": protocol, "port": number} for port, protocol, number in ports]
    body = {"metadata": meta, "addressType": family, "endpoints": endpoints, "ports": port_list}
    return msgspec.convert(body, EndpointSlice)


def node(name: str, zone: str, pods: Iterable[str], address: str, **labels: str) -> Node:
    all_labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, **labels}
    status = {
        "addresses": [{"type": "InternalIP", "address": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "4"},
    }
    body = {"metadata": {"name": name, "labels": all_labels}, "spec": {"podCIDRs": list(pods)}, "status": status}
    return msgspec.convert(body, Node)


def nodes() -> list[Node]:
    """Two in each zone: zone-a-1 has pods 10.0.11.0/24, zone-c-2 has 10.0.32.0/24."""
    return [
        node(f"{zone}-{n}", zone, [f"10.0.{z}{n}.0/24", f"fd00:{z}{n}::/64"], f"192.168.{z}.{n}")
        for z, zone in enumerate(ZONES, 1)
        for n in (1, 2)
    ]


class FakeCluster:
    """A zone and a table that applies its updates."""

    def __init__(
        self,
        *,
        nodes_: list[Node] | None = None,
        name: str = DOMAIN,
        namespaces: Iterable[str] = ("default", "shop"),
        loaded: bool = True,
        **settings: Any,
    ) -> None:
        servers = settings.pop("servers", (bytes((10, 96, 0, 10)),))
        domain = ClusterDomain(to_wire(name), **settings.pop("domain", {}))
        self.zone = ClusterZone(ZoneConfig(domain=domain, servers=servers, **settings))
        self.nodes = nodes() if nodes_ is None else nodes_
        self.table = RecordTable(domain.wire)
        self.counters = QueryCounters()
        self.fast: FastResponder = fast_responder(self.table, self.counters)
        self.apply(self.zone.snapshot())
        self.apply(self.zone.set_serial(1))
        self.apply(self.zone.set_nodes(self.nodes))
        self.apply(self.zone.set_namespaces({namespace: {} for namespace in namespaces}))
        if loaded:
            self.apply([("loaded",)])

    def apply(self, updates: Iterable[Update]) -> None:
        decoder = ipc.FrameDecoder()
        for update in updates:
            for decoded in decoder.feed(ipc.encode(update)):
                assert isinstance(decoded, tuple)
                self.table.apply(decoded)

    def put(self, service: Service, *slices: EndpointSlice) -> FakeCluster:
        self.apply(self.zone.set_service(key_of(service), service, slices))
        return self

    def remove(self, name: str) -> None:
        self.apply(self.zone.set_service(Key("shop", name), None, ()))

    def ask(
        self, name: str, kind: str = "A", *, client: str = "", largest: int = MAX_MESSAGE_BYTES
    ) -> dns.message.Message:
        """The reply to a client at that address, as read by dnspython. The fast path and the handler have to agree."""
        sender = QuerySender(self.table.locations.node_of(client)) if client else QuerySender()
        query = dns.message.make_query(name, kind)
        slow = respond(self.table, query.to_wire(), sender, largest)
        assert isinstance(slow, bytes), f"not ours: {slow}"
        fast = self.fast(dns.message.make_query(name, kind, use_edns=0, payload=1232).to_wire(), sender)
        assert fast is not None
        reply = dns.message.from_wire(slow)
        fast_reply = dns.message.from_wire(fast)
        assert fast_reply.rcode() == reply.rcode()
        if not fast_reply.flags & dns.flags.TC:
            assert [set(rrset) for rrset in fast_reply.answer] == [set(rrset) for rrset in reply.answer]
        assert query.is_response(reply)
        return reply

    def is_forwarded(self, name: str, kind: str) -> bool:
        query = dns.message.make_query(name, kind).to_wire()
        forwarded = isinstance(respond(self.table, query, QuerySender(), MAX_MESSAGE_BYTES), ForwardQuery)
        assert forwarded == (self.fast(query, QuerySender()) is None)
        return forwarded


def answer_texts(reply: dns.message.Message) -> list[str]:
    """The answer section as sorted text: type and data."""
    return sorted(
        f"{dns.rdatatype.to_text(rrset.rdtype)} {record.to_text()}" for rrset in reply.answer for record in rrset
    )
