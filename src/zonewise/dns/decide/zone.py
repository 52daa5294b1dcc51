"""Zone of the cluster: the current Services, nodes, namespaces and pods in, record updates for the workers out.

Level-based: the caller passes current state, not events, and may pass it twice.
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
from zonewise.objects import EndpointSlice, Key, Node, Service
from zonewise.routing import Drain, RoutingNodes, drained_zones

_NO_VIEW: Final[tuple[ClientGroupView | None, frozenset[str]]] = (None, frozenset())
"""Every client gets every endpoint, and no zone is drained."""


class _PublishedService(NamedTuple):
    """Records of one Service as sent to the workers, and their number of names."""

    encoded: EncodedRecords
    names: int


@dataclass(frozen=True, slots=True)
class ZoneConfig:
    domain: ClusterDomain
    pods: PodNameRecords = PodNameRecords.DISABLED
    servers: tuple[bytes, ...] = ()
    """Addresses of this server, for the name server's record."""
    locate_by_pods: bool = False
    """Locate clients by the addresses of all pods, for networks whose nodes have no pod ranges."""


class ClusterZone:
    def __init__(self, config: ZoneConfig) -> None:
        self.config = config
        self.node_dependent: dict[Key, ClientProfile] = {}
        """Services whose answers depend on the client's node: to be set again when nodes change."""
        self._published: dict[Key, _PublishedService] = {}
        self._profiles = ClientProfiles(RoutingNodes.of(()))
        self._profile_users: Counter[int] = Counter()
        self._locations = ClientLocations({}, {})
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._pods = PodAddresses()
        self._name_servers: dict[Key, tuple[SrvTarget, ...]] = {}
        """Services of this server, with its names and addresses there."""
        self._serial = 0

    @property
    def drained_by_nodes(self) -> Drain:
        """When this changes, all Services have to be set again."""
        return self._profiles.cluster.node_drains.drain

    @property
    def size(self) -> int:
        """Number of names of all Services."""
        return sum(service.names for service in self._published.values())

    def set_service(self, key: Key, service: Service | None, slices: Sequence[EndpointSlice]) -> list[Update]:
        """`slices` are those labelled for the Service."""
        domain = self.config.domain
        addresses = ready_addresses(slices, domain)
        view, drained = self._view(service, slices) if service and addresses and is_headless(service) else _NO_VIEW
        built = build_records(service, addresses, view, drained) if service else None
        if built and not addresses and (endpoints := fqdn_endpoints(slices, domain)):
            built = built if built.alias or built.cluster_ips is not None else fqdn_records(endpoints)
        new = _PublishedService(service_records.encode(built), count_names(built)) if built else None
        old = self._published.pop(key, None)
        if new:
            self._published[key] = new
        before, after = self._use_profile(key, view)
        changed = [] if old == new else self._service_updates({key: new})
        return [*before, *changed, *after, *self._name_server_updates(key, service, addresses)]

    def _name_server_updates(
        self, key: Key, service: Service | None, addresses: Sequence[EndpointAddress]
    ) -> Iterator[Update]:
        """The names of a Service with this server among its endpoints are the server's NS names, as in CoreDNS."""
        is_ours = any(address.address in self.config.servers for address in addresses)
        targets: tuple[SrvTarget, ...] = ()
        if service and is_ours:
            targets = tuple(name_server_targets(key, service, addresses, self.config.domain))
        if targets == self._name_servers.get(key, ()):
            return
        self._name_servers[key] = targets
        static = self._static()
        own = (self.config.domain.wire, self._under("ns.dns"))
        yield from ipc.updates("names", [(name, static[name]) for name in own])

    def set_nodes(self, nodes: Sequence[Node]) -> list[Update]:
        """`node_dependent` Services have to be set again."""
        self._profiles.set_nodes(RoutingNodes.of(nodes))
        locations = client_locations(nodes)
        if locations == self._locations:
            return []
        self._locations = locations
        return [ipc.locations_update(locations)]

    def set_namespaces(self, namespaces: Mapping[str, Mapping[str, str]]) -> list[Update]:
        """Annotations by name. If a namespace drains other zones than before, its Services have to be set again."""
        old, self._namespaces = self._namespace_names(), dict(namespaces)
        updates = list(ipc.updates("names", _changes(old, self._namespace_names())))
        return [*updates, self._pods_update()] if updates else []

    def set_pod(self, pod: Key, addresses: Sequence[bytes], node: str) -> list[Update]:
        """For pods that locate clients or have records. A pod without addresses is deleted."""
        changes = self._pods.set(pod, addresses, node)
        lost = [(change.previous.namespace, change.address, False) for change in changes if change.previous]
        names = [(pod.namespace, change.address, bool(change.node)) for change in changes]
        return [*self._pod_locations(changes), *self._pod_names([*lost, *names])]

    def _pod_locations(self, changes: Iterable[AddressChange]) -> Iterator[Update]:
        return ipc.pod_location_updates(change[:2] for change in changes) if self.config.locate_by_pods else iter(())

    def _pod_names(self, addresses: Iterable[tuple[str, bytes, bool]]) -> Iterator[Update]:
        """From namespace, address, and whether a pod has it."""
        if self.config.pods is not PodNameRecords.VERIFIED:
            return
        parent = self._under("pod")
        named = ((below(parent, dashed(str(ip_address(ip))), space), ip, exists) for space, ip, exists in addresses)
        yield from ipc.updates("names", ((name, self._pod_record(ip, exists)) for name, ip, exists in named if name))

    def _pod_record(self, address: bytes, exists: bool) -> EncodedRecords | None:
        type_ = RecordType.A if is_v4(address) else RecordType.AAAA
        return ipc.encode_records({type_: records.addresses([address], self.config.domain.ttl)}) if exists else None

    def set_serial(self, serial: int) -> list[Update]:
        """Part of every denial. Only secondary servers compare it, and there are none."""
        self._serial = serial
        domain = self.config.domain
        own = {domain.wire: self._static()[domain.wire]}
        authority = records.authority(domain.wire, serial, domain.ttl)
        return [("authority", authority), *ipc.updates("names", own.items())]

    def snapshot(self) -> Iterator[Update]:
        """All records, for a new worker."""
        yield ("ttl", self.config.domain.ttl)
        yield from self.set_serial(self._serial)
        yield ipc.locations_update(self._locations)
        yield from map(ipc.profile_update, {profile.id: profile for profile in self.node_dependent.values()}.values())
        yield self._pods_update()
        yield from ipc.updates("names", {**self._static(), **self._namespace_names()}.items())
        yield from self._pod_locations(address for _, address in self._pods.all())
        yield from self._pod_names((pod.namespace, address.address, True) for pod, address in self._pods.all())
        yield from self._service_updates(self._published)

    def _service_updates(self, services: Mapping[Key, _PublishedService | None]) -> list[Update]:
        named = ((service_name(key, self.config.domain), service) for key, service in services.items())
        return list(ipc.updates("services", ((name, service and service.encoded) for name, service in named if name)))

    def _view(self, service: Service, slices: Sequence[EndpointSlice]) -> tuple[ClientGroupView | None, frozenset[str]]:
        """The endpoints of each client group, and the endpoints in drained zones."""
        cluster = self._profiles.cluster
        drain = drained_zones(service, self._namespaces.get(service.metadata.namespace, {}), cluster.node_drains)
        made = decisions(service, slices, cluster, drain)
        return group_view(made, self._profiles), frozenset(address for decision in made for address in decision.drained)

    def _use_profile(self, key: Key, view: ClientGroupView | None) -> tuple[list[Update], list[Update]]:
        """A profile is sent before the first Service that needs it, and deleted after the last."""
        before: list[Update] = []
        old = self.node_dependent.pop(key, None)
        users = self._profile_users
        if view:
            self.node_dependent[key] = view.profile
            before = [] if users[view.profile.id] else [ipc.profile_update(view.profile)]
            users[view.profile.id] += 1
        if old is None:
            return before, []
        users[old.id] -= 1
        if users[old.id]:
            return before, []
        del users[old.id]
        self._profiles.forget(old)
        return before, [("forget", old.id)]

    def _under(self, kind: str) -> bytes:
        return to_wire(kind)[:-1] + self.config.domain.wire

    def _static(self) -> dict[bytes, EncodedRecords]:
        domain = self.config.domain
        targets = self._targets()
        servers = list(dict.fromkeys(target.address for target in targets))
        families = {
            RecordType.A: [ip for ip in servers if is_v4(ip)],
            RecordType.AAAA: [ip for ip in servers if not is_v4(ip)],
        }
        static: dict[bytes, Records] = {
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
        return {name: ipc.encode_records(by_type) for name, by_type in static.items()}

    def _targets(self) -> list[SrvTarget]:
        """Names and addresses of this server: those of its Services, or else its own addresses."""
        targets = [target for key in sorted(self._name_servers) for target in self._name_servers[key]]
        return targets or [SrvTarget(self._under("ns.dns"), 53, address) for address in self.config.servers]

    def _namespace_names(self) -> dict[bytes, EncodedRecords]:
        """They exist without records, because names below them do."""
        kinds = ("svc",) if self.config.pods is PodNameRecords.DISABLED else ("svc", "pod")
        names = (below(self._under(kind), namespace) for kind in kinds for namespace in sorted(self._namespaces))
        return {name: ipc.encode_records({}) for name in names if name}

    def _pods_update(self) -> Update:
        insecure = self.config.pods is PodNameRecords.INSECURE
        names = [below(self._under("pod"), namespace) for namespace in sorted(self._namespaces)] if insecure else []
        return ("pods", [name for name in names if name])


def _changes(old: Mapping[bytes, EncodedRecords], new: Mapping[bytes, EncodedRecords]) -> list[ipc.Change]:
    """New names come before deletions, so that a name that moved is never missing."""
    changed: list[ipc.Change] = [(name, encoded) for name, encoded in new.items() if old.get(name) != encoded]
    return changed + [(name, None) for name in old if name not in new]
