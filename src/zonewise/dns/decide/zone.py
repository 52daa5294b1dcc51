"""The cluster as records: takes Services, nodes and namespaces as they are now, gives the updates that follow.

Level-based: whoever calls may call twice, and says what is, not what happened. Pure: the watcher performs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple

from zonewise.dns.decide import service_records
from zonewise.dns.decide.client_groups import ClientGroupView, ClientProfile, ClientProfiles, decisions, group_view
from zonewise.dns.decide.client_location import ClientLocations, client_locations
from zonewise.dns.decide.pod_records import AddressChange, PodAddresses, PodNameRecords
from zonewise.dns.decide.record_builder import (
    ClusterDomain,
    EndpointAddress,
    build_records,
    count_names,
    fqdn_endpoints,
    fqdn_records,
    is_headless,
    name_server_targets,
    ready_addresses,
    service_name,
)
from zonewise.dns.wire import ipc, records
from zonewise.dns.wire.ipc import EncodedRecords, Records, Update
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import below, dashed, is_v4, to_wire
from zonewise.dns.wire.records import SrvTarget
from zonewise.objects import Endpoint, EndpointSlice, Key, Node, Service
from zonewise.routing import Drain, RoutingNodes, drained_zones
from zonewise.routing.endpoints import is_ready

NOT_SEEN: Final[tuple[ClientGroupView | None, frozenset[str]]] = (None, frozenset())
"""Everybody gets everything, and no zone is drained."""


class _Sent(NamedTuple):
    """What serving processes were told of one Service: its sheet, with how many names."""

    written: EncodedRecords
    names: int


@dataclass(frozen=True, slots=True)
class ZoneConfig:
    domain: ClusterDomain
    pods: PodNameRecords = PodNameRecords.DISABLED
    servers: tuple[bytes, ...] = ()
    """Addresses of this server, for the name server's record."""
    locate_by_pods: bool = False
    """Find clients by the addresses of all pods, for networks whose nodes have no ranges of their own."""


class ClusterZone:
    def __init__(self, settings: ZoneConfig) -> None:
        self.settings = settings
        self.viewed: dict[Key, ClientProfile] = {}
        """Services whose answers depend on where nodes are: to be set again when nodes change."""
        self._sent: dict[Key, _Sent] = {}
        self._profiles = ClientProfiles(RoutingNodes.of(()))
        self._used: Counter[int] = Counter()
        self._locations = ClientLocations({}, {})
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._pods = PodAddresses()
        self._name_servers: dict[Key, tuple[SrvTarget, ...]] = {}
        """Services that lead to this server, with the names and addresses that they give it."""
        self._serial = 0

    @property
    def drained_by_nodes(self) -> Drain:
        """When this changes, all Services have to be set again."""
        return self._profiles.cluster.node_drains.drain

    @property
    def size(self) -> int:
        """Names of Services."""
        return sum(sent.names for sent in self._sent.values())

    def set_service(self, key: Key, service: Service | None, slices: Sequence[EndpointSlice]) -> list[Update]:
        """`slices` are those labelled for the Service."""
        endpoints = ready_addresses(slices, self.settings.domain)
        seen, drained = self._view(service, slices) if service and endpoints and is_headless(service) else NOT_SEEN
        sheet = build_records(service, endpoints, seen, drained) if service else None
        if sheet and not endpoints and (pointers := fqdn_endpoints(slices, self.settings.domain)):
            sheet = sheet if sheet.alias or sheet.virtual is not None else fqdn_records(pointers)
        new = _Sent(service_records.encode(sheet), count_names(sheet)) if sheet else None
        old = self._sent.pop(key, None)
        if new:
            self._sent[key] = new
        before, after = self._use(key, seen)
        changed = [] if old == new else self._service_updates({key: new})
        return [*before, *changed, *after, *self._serve_names(key, service, endpoints)]

    def _serve_names(self, key: Key, service: Service | None, endpoints: Sequence[EndpointAddress]) -> Iterator[Update]:
        """A Service that leads to this server gives it its name and addresses, as CoreDNS has it."""
        leads_here = any(endpoint.address in self.settings.servers for endpoint in endpoints)
        found = (
            tuple(name_server_targets(key, service, endpoints, self.settings.domain)) if service and leads_here else ()
        )
        if found == self._name_servers.get(key, ()):
            return
        self._name_servers[key] = found
        static = self._static()
        own = (self.settings.domain.wire, self._under("ns.dns"))
        yield from ipc.updates("names", [(name, static[name]) for name in own])

    def set_nodes(self, nodes: Sequence[Node]) -> list[Update]:
        """`viewed` Services have to be set again."""
        self._profiles.renew(RoutingNodes.of(nodes))
        locations = client_locations(nodes)
        if locations == self._locations:
            return []
        self._locations = locations
        return [ipc.locations_update(locations)]

    def set_namespaces(self, namespaces: Mapping[str, Mapping[str, str]]) -> list[Update]:
        """With their annotations; Services of one that drains other zones than before have to be set again."""
        old, self._namespaces = self._namespace_names(), dict(namespaces)
        updates = list(ipc.updates("names", _changes(old, self._namespace_names())))
        return [*updates, self._pods_update()] if updates else []

    def set_pod(self, pod: Key, addresses: Sequence[bytes], node: str) -> list[Update]:
        """A pod as it is, where clients are found by pods or pods have records; without addresses, it is gone."""
        taken = self._pods.set(pod, addresses, node)
        lost = [(each.previous.namespace, each.address, False) for each in taken if each.previous]
        names = [(pod.namespace, each.address, bool(each.node)) for each in taken]
        return [*self._pod_places(taken), *self._pod_names([*lost, *names])]

    def _pod_places(self, taken: Iterable[AddressChange]) -> Iterator[Update]:
        return ipc.pod_location_updates(each[:2] for each in taken) if self.settings.locate_by_pods else iter(())

    def _pod_names(self, names: Iterable[tuple[str, bytes, bool]]) -> Iterator[Update]:
        """Namespace, address, and whether a pod has it."""
        if self.settings.pods is not PodNameRecords.VERIFIED:
            return
        under = self._under("pod")
        found = ((below(under, dashed(str(ip_address(ip))), space), ip, there) for space, ip, there in names)
        yield from ipc.updates("names", ((name, self._pod_written(ip, there)) for name, ip, there in found if name))

    def _pod_written(self, address: bytes, there: bool) -> EncodedRecords | None:
        type_ = RecordType.A if is_v4(address) else RecordType.AAAA
        return ipc.encode_records({type_: records.addresses([address], self.settings.domain.ttl)}) if there else None

    def set_serial(self, serial: int) -> list[Update]:
        """Said in every denial; secondaries, which there are none of, would compare it."""
        self._serial = serial
        domain = self.settings.domain
        own = {domain.wire: self._static()[domain.wire]}
        authority = records.authority(domain.wire, serial, domain.ttl)
        return [("authority", authority), *ipc.updates("names", own.items())]

    def snapshot(self) -> Iterator[Update]:
        """Everything, for a process that knows nothing yet."""
        yield ("ttl", self.settings.domain.ttl)
        yield from self.set_serial(self._serial)
        yield ipc.locations_update(self._locations)
        yield from map(ipc.profile_update, {profile.id: profile for profile in self.viewed.values()}.values())
        yield self._pods_update()
        yield from ipc.updates("names", {**self._static(), **self._namespace_names()}.items())
        yield from self._pod_places(taken for _, taken in self._pods.all())
        yield from self._pod_names((pod.namespace, taken.address, True) for pod, taken in self._pods.all())
        yield from self._service_updates(self._sent)

    def _service_updates(self, sent: Mapping[Key, _Sent | None]) -> list[Update]:
        named = ((service_name(key, self.settings.domain), found) for key, found in sent.items())
        return list(ipc.updates("services", ((name, found and found.written) for name, found in named if name)))

    def _view(self, service: Service, slices: Sequence[EndpointSlice]) -> tuple[ClientGroupView | None, frozenset[str]]:
        """Who sees what, and which endpoints are in a zone that traffic is asked to leave."""
        cluster = self._profiles.cluster
        drain = drained_zones(service, self._namespaces.get(service.metadata.namespace, {}), cluster.node_drains)
        made = decisions(service, ready_by_family(slices), cluster, drain)
        return group_view(made, self._profiles), frozenset(address for decision in made for address in decision.drained)

    def _use(self, key: Key, seen: ClientGroupView | None) -> tuple[list[Update], list[Update]]:
        """A profile is told before the first name that needs it, and forgotten after the last."""
        before: list[Update] = []
        old = self.viewed.pop(key, None)
        if seen:
            self.viewed[key] = seen.profile
            before = [] if self._used[seen.profile.id] else [ipc.profile_update(seen.profile)]
            self._used[seen.profile.id] += 1
        if old is None:
            return before, []
        self._used[old.id] -= 1
        if self._used[old.id]:
            return before, []
        del self._used[old.id]
        self._profiles.forget(old)
        return before, [("forget", old.id)]

    def _under(self, kind: str) -> bytes:
        return to_wire(kind)[:-1] + self.settings.domain.wire

    def _static(self) -> dict[bytes, EncodedRecords]:
        domain = self.settings.domain
        targets = self._targets()
        servers = list(dict.fromkeys(target.address for target in targets))
        families = {
            RecordType.A: [ip for ip in servers if is_v4(ip)],
            RecordType.AAAA: [ip for ip in servers if not is_v4(ip)],
        }
        found: dict[bytes, Records] = {
            domain.wire: {
                RecordType.SOA: records.start_of_authority(domain.wire, self._serial, domain.ttl),
                RecordType.NS: records.name_servers(domain.wire, domain.ttl, targets),
            },
            self._under("svc"): {},
            self._under("pod"): {},
            self._under("dns"): {},
            self._under("ns.dns"): {kind: records.addresses(ips, domain.ttl) for kind, ips in families.items() if ips},
            self._under("dns-version"): {RecordType.TXT: records.schema_version()},
        }
        return {name: ipc.encode_records(each) for name, each in found.items()}

    def _targets(self) -> list[SrvTarget]:
        """Where this server is asked: by Services that lead to it, or else at its own addresses."""
        found = [target for key in sorted(self._name_servers) for target in self._name_servers[key]]
        return found or [SrvTarget(self._under("ns.dns"), 53, address) for address in self.settings.servers]

    def _namespace_names(self) -> dict[bytes, EncodedRecords]:
        """They exist, though nothing but names below them is to be had."""
        kinds = ("svc",) if self.settings.pods is PodNameRecords.DISABLED else ("svc", "pod")
        found = (below(self._under(kind), namespace) for kind in kinds for namespace in sorted(self._namespaces))
        return {name: ipc.encode_records({}) for name in found if name}

    def _pods_update(self) -> Update:
        insecure = self.settings.pods is PodNameRecords.INSECURE
        found = [below(self._under("pod"), namespace) for namespace in sorted(self._namespaces)] if insecure else []
        return ("pods", [name for name in found if name])


def _changes(old: Mapping[bytes, EncodedRecords], new: Mapping[bytes, EncodedRecords]) -> list[ipc.Change]:
    """New names before old ones go: a name that moved is never missing."""
    changed: list[ipc.Change] = [(name, found) for name, found in new.items() if old.get(name) != found]
    return changed + [(name, None) for name in old if name not in new]


def ready_by_family(slices: Iterable[EndpointSlice]) -> list[list[Endpoint]]:
    """The ready endpoints of each address family. DNS never falls back to those that terminate."""
    found: dict[str, list[Endpoint]] = {}
    for each in slices:
        ready = [endpoint for endpoint in each.endpoints or () if is_ready(endpoint)]
        found.setdefault(each.address_type, []).extend(ready)
    return [found[family] for family in sorted(found) if family != "FQDN"]
