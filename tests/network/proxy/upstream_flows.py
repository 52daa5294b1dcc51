"""kube-proxy's recorded flow tables as values: what its tests feed to a proxy, in order, and the flows that they expect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from zonewise.objects import EndpointSlice, Key, Service, key_of
from zonewise.proxy.wire.family import FAMILIES, Family

STATIC: Mapping[str, str] = {
    "TestTracePacketV4": "TestOverallNFTablesRules",
    "TestTracePacketV6": "TestNodePorts/ipv6,_multiple_nodeport-addresses",
}
"""Tests of upstream's tracer with rules in a literal, which come from the state of another test."""


class Settings(msgspec.Struct, rename="camel"):
    family: str
    node_name: str
    node_ip: str = msgspec.field(name="nodeIP")
    node_ips: list[str] = msgspec.field(name="nodeIPs")
    node_port_addresses: list[str]
    local_detector: list[str] | None
    service_cidrs: str = msgspec.field(name="serviceCIDRs")
    masquerade_all: bool

    @property
    def pod_ranges(self) -> tuple[str, ...]:
        """Upstream's tests recognise pods by their range, or not at all."""
        return tuple((self.local_detector or [])[-1:])

    @property
    def service_ranges(self) -> tuple[str, ...]:
        return tuple(self.service_cidrs.split(","))


class Flow(msgspec.Struct, frozen=True):
    """`output`: an endpoint or several, REJECT, DROP, or empty for a packet that is none of the proxy's business."""

    name: str
    source: str
    protocol: str
    dest: str
    port: int
    output: str
    masq: bool


@dataclass(frozen=True)
class FlowTable:
    """`rules`: those that upstream made of the state, as input for nft."""

    test: str
    line: str
    flows: tuple[Flow, ...]
    rules: str


@dataclass(frozen=True)
class Sync:
    """The time to make rules: all Services with slices, which of them changed, and kube-proxy's rules as input for nft."""

    settings: Settings
    rules: str
    objects: Mapping[Key, tuple[Service | None, list[EndpointSlice]]]
    changed: frozenset[Key]


@dataclass
class State:
    """What one of upstream's proxies gets, in order."""

    test: str
    steps: list[Sync | FlowTable] = field(default_factory=list)
    _services: dict[Key, Service] = field(default_factory=dict)
    _slices: dict[Key, EndpointSlice] = field(default_factory=dict)
    _changed: set[Key] = field(default_factory=set)

    @property
    def tables(self) -> list[FlowTable]:
        return [step for step in self.steps if isinstance(step, FlowTable)]

    @property
    def node_ips(self) -> list[str]:
        return next(step.settings.node_ips for step in self.steps if isinstance(step, Sync))

    def add(self, event: Mapping[str, Any]) -> None:
        match event["kind"]:
            case "service" | "service-deleted":
                service = _decoded(event["object"], Service)
                self._set(self._services, service, deleted=event["kind"] == "service-deleted")
                self._changed.add(key_of(service))
            case "slice" | "slice-deleted":
                endpoint_slice = _decoded(event["object"], EndpointSlice)
                self._set(self._slices, endpoint_slice, deleted=event["kind"] == "slice-deleted")
                self._changed.add(_service_of(endpoint_slice))
            case "sync" if event.get("rules"):  # none before upstream's proxy has seen all objects
                settings = msgspec.convert(event["settings"], Settings)
                self.steps.append(Sync(settings, event["rules"], self._objects(), frozenset(self._changed)))
                self._changed.clear()
            case "flows":
                self.test = event["test"]
                self.steps.append(table_of(event))

    def _set(self, into: dict[Key, Any], value: Service | EndpointSlice, *, deleted: bool) -> None:
        if deleted:
            into.pop(key_of(value))
        else:
            into[key_of(value)] = value

    def _objects(self) -> dict[Key, tuple[Service | None, list[EndpointSlice]]]:
        keys = {*self._services, *self._changed}
        return {key: (self._services.get(key), self._slices_of(key)) for key in sorted(keys)}

    def _slices_of(self, service: Key) -> list[EndpointSlice]:
        return [endpoint_slice for endpoint_slice in self._slices.values() if _service_of(endpoint_slice) == service]


def table_of(event: Mapping[str, Any]) -> FlowTable:
    flows = tuple(msgspec.convert(event["flows"], list[Flow]))
    return FlowTable(event["test"], event["line"], flows, event["rules"])


def every_flow(sync: Sync, sources: Iterable[str]) -> Iterator[Flow]:
    """To each address and port of each Service, and to ports and protocols that it does not have: without an outcome."""
    family = FAMILIES[sync.settings.family]
    clients = sorted({family.canonical(source) for source in (*sources, *_endpoints(sync)) if family.owns(source)})
    for dest, port, protocol in dict.fromkeys(_frontends(sync, family)):
        for source in clients:
            yield Flow("", source, protocol, dest, port, "", masq=False)


def _endpoints(sync: Sync) -> list[str]:
    slices = [endpoint_slice for _, slices in sync.objects.values() for endpoint_slice in slices]
    return [endpoint.addresses[0] for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ()]


def _frontends(sync: Sync, family: Family) -> Iterator[tuple[str, int, str]]:
    for service in (service for service, _ in sync.objects.values() if service):
        ingress = [entry.ip for entry in service.status.load_balancer.ingress]
        addresses = [service.spec.cluster_ip, *service.spec.external_ips, *ingress]
        known = [family.canonical(text) for text in addresses if text not in {"", "None"} and family.owns(text)]
        nodes = [text for text in sync.settings.node_ips if family.owns(text)]
        for port in service.spec.ports:
            another = "UDP" if port.protocol == "TCP" else "TCP"
            for tried in known:
                yield from ((tried, port.port, port.protocol), (tried, port.port, another))
                yield tried, port.port + 1000, port.protocol
            for tried in nodes if port.node_port else ():
                yield from ((tried, port.node_port, port.protocol), (tried, port.node_port, another))


def read_states(recorded: Path) -> list[State]:
    """Those that rules were made of."""
    by_proxier: dict[int, State] = {}
    static: list[FlowTable] = []
    for line in recorded.read_text().splitlines():
        event = json.loads(line)
        if event["proxier"] == 0:
            static.append(table_of(event))
        elif event["kind"] == "new":
            by_proxier[event["proxier"]] = State(event["test"])
        else:
            by_proxier[event["proxier"]].add(event)
    states = list(by_proxier.values())
    for table in static:
        _state_of(states, STATIC[table.test]).steps.append(table)
    return [state for state in states if state.steps]


def _state_of(states: Iterable[State], test: str) -> State:
    (state,) = (state for state in states if state.test == test)
    return state


def _decoded(body: Any, kind: Any) -> Any:
    """As the informers decode it."""
    return msgspec.json.decode(json.dumps(body), type=kind)


def _service_of(endpoint_slice: EndpointSlice) -> Key:
    return Key(endpoint_slice.metadata.namespace, endpoint_slice.metadata.labels["kubernetes.io/service-name"])
