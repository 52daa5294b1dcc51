"""The cluster as records: takes Services, nodes and namespaces as they are now, gives the updates that follow.

Level-based: whoever calls may call twice, and says what is, not what happened. Pure: the watcher performs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from zonewise.dns import feed, records
from zonewise.dns.clients import Places
from zonewise.dns.feed import Written
from zonewise.dns.message import Type
from zonewise.dns.names import below, dashed, is_v4, to_wire
from zonewise.dns.pods import PodRecords, pod_answer
from zonewise.dns.ranges import places
from zonewise.dns.service import Domain, Published, Records, is_headless, publish, rows_of
from zonewise.dns.table import Update
from zonewise.dns.views import Profile, Profiles, View, decisions, view
from zonewise.objects import Endpoint, EndpointSlice, Key, Node, Service
from zonewise.routing import Cluster, Drain, drained_zones
from zonewise.routing.endpoints import is_ready


@dataclass(frozen=True, slots=True)
class _Sent:
    """What serving processes were told of one Service."""

    names: Mapping[bytes, Written] = field(default_factory=dict)
    zonal: Mapping[bytes, Written] = field(default_factory=dict)
    reverse: Mapping[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    virtual: Mapping[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Published) -> _Sent:
        names = {name: feed.write(records) for name, records in found.names.items()}
        zonal = {name: feed.write_zonal(records) for name, records in found.zonal.items()}
        return cls(names, zonal, found.reverse, found.virtual)


NOTHING = _Sent()


@dataclass(frozen=True, slots=True)
class Settings:
    domain: Domain
    pods: PodRecords = PodRecords.DISABLED
    servers: tuple[bytes, ...] = ()
    """Addresses of this server, for the name server's record."""


class Catalog:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.viewed: dict[Key, Profile] = {}
        """Services whose answers depend on where nodes are: to be set again when nodes change."""
        self._published: dict[Key, _Sent] = {}
        self._pointers: dict[bytes, dict[Key, tuple[bytes, ...]]] = {}
        self._virtual: dict[bytes, bytes] = {}
        self._profiles = Profiles(Cluster.of(()))
        self._used: Counter[int] = Counter()
        self._places = Places({}, {})
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._pods: dict[bytes, Written] = {}
        self._serial = 0

    @property
    def drained_by_nodes(self) -> Drain:
        """When this changes, all Services have to be set again."""
        return self._profiles.cluster.node_drains.drain

    @property
    def size(self) -> int:
        return sum(len(found.names) for found in self._published.values())

    def set_service(self, key: Key, service: Service | None, slices: Sequence[EndpointSlice]) -> list[Update]:
        """`slices` are those labelled for the Service."""
        rows = rows_of(slices, self.settings.domain)
        seen, drained = self._view(service, slices) if service and rows and is_headless(service) else (None, ())
        new = _Sent.of(publish(service, rows, seen, self.settings.domain, drained)) if service else NOTHING
        old = self._published.pop(key, NOTHING)
        if service:
            self._published[key] = new
        before, after = self._use(key, seen)
        updates = [*before, *feed.name_updates("names", _changes(old.names, new.names))]
        updates += feed.name_updates("zonal", _changes(old.zonal, new.zonal))
        return [*updates, *self._set_pointers(key, old, new), *after]

    def set_nodes(self, nodes: Sequence[Node], pods: Mapping[bytes, str]) -> list[Update]:
        """`pods` are nodes by the addresses of pods that no range covers. `viewed` Services have to be set again."""
        self._profiles.renew(Cluster.of(nodes))
        return self.set_places(nodes, pods)

    def set_places(self, nodes: Iterable[Node], pods: Mapping[bytes, str]) -> list[Update]:
        found = places(nodes, pods)
        if found == self._places:
            return []
        self._places = found
        return [feed.places_update(found)]

    def set_namespaces(self, namespaces: Mapping[str, Mapping[str, str]]) -> list[Update]:
        """With their annotations; Services of one that drains other zones than before have to be set again."""
        old, self._namespaces = self._namespace_names(), dict(namespaces)
        updates = list(feed.name_updates("names", _changes(old, self._namespace_names())))
        return [*updates, self._pods_update()] if updates else []

    def set_pods(self, pods: Iterable[tuple[str, str]]) -> list[Update]:
        """Namespaces and addresses, where pods are answered for one by one."""
        old, self._pods = self._pods, {}
        for namespace, address in pods:
            content = pod_answer(dashed(address).encode(), self.settings.domain.ttl)
            name = below(self._under("pod"), dashed(address), namespace)
            if content and name:
                self._pods[name] = feed.write(content)
        return list(feed.name_updates("names", _changes(old, self._pods)))

    def set_serial(self, serial: int) -> list[Update]:
        """Said in every denial; secondaries, which there are none of, would compare it."""
        self._serial = serial
        domain = self.settings.domain
        own = {domain.wire: self._static()[domain.wire]}
        authority = records.authority(domain.wire, serial, domain.ttl)
        return [("authority", authority), *feed.name_updates("names", own.items())]

    def snapshot(self) -> Iterator[Update]:
        """Everything, for a process that knows nothing yet."""
        yield from self.set_serial(self._serial)
        yield feed.places_update(self._places)
        yield from map(feed.profile_update, {profile.id: profile for profile in self.viewed.values()}.values())
        yield self._pods_update()
        yield from feed.name_updates("names", {**self._static(), **self._namespace_names(), **self._pods}.items())
        for published in self._published.values():
            yield from feed.name_updates("names", published.names.items())
            yield from feed.name_updates("zonal", published.zonal.items())
        yield from self._pointer_updates({*self._pointers, *self._virtual})

    def _view(self, service: Service, slices: Sequence[EndpointSlice]) -> tuple[View | None, Container[str]]:
        """Who sees what, and which endpoints are in a zone that traffic is asked to leave."""
        cluster = self._profiles.cluster
        drain = drained_zones(service, self._namespaces.get(service.metadata.namespace, {}), cluster.node_drains)
        made = decisions(service, _families(slices), cluster, drain)
        return view(made, self._profiles), frozenset(address for decision in made for address in decision.drained)

    def _use(self, key: Key, seen: View | None) -> tuple[list[Update], list[Update]]:
        """A profile is told before the first name that needs it, and forgotten after the last."""
        before: list[Update] = []
        old = self.viewed.pop(key, None)
        if seen:
            self.viewed[key] = seen.profile
            before = [] if self._used[seen.profile.id] else [feed.profile_update(seen.profile)]
            self._used[seen.profile.id] += 1
        if old is None:
            return before, []
        self._used[old.id] -= 1
        return before, [("forget", old.id)] if not self._used[old.id] else []

    def _set_pointers(self, key: Key, old: _Sent, new: _Sent) -> Iterator[Update]:
        touched = {
            address
            for address in {*old.reverse, *new.reverse, *old.virtual, *new.virtual}
            if old.reverse.get(address) != new.reverse.get(address)
            or old.virtual.get(address) != new.virtual.get(address)
        }
        for address in touched:
            self._set_pointer(key, address, old, new)
        yield from self._pointer_updates(touched)

    def _set_pointer(self, key: Key, address: bytes, old: _Sent, new: _Sent) -> None:
        found = self._pointers.setdefault(address, {})
        found.pop(key, None)
        if targets := new.reverse.get(address):
            found[key] = targets
        if not found:
            del self._pointers[address]
        if name := new.virtual.get(address):
            self._virtual[address] = name
        elif self._virtual.get(address) == old.virtual.get(address):  # another Service may have got the address since
            self._virtual.pop(address, None)

    def _pointer_updates(self, addresses: Iterable[bytes]) -> Iterator[Update]:
        changes = [(to_wire(ip_address(address).reverse_pointer), self._pointer(address)) for address in addresses]
        yield from feed.name_updates("pointers", changes)

    def _pointer(self, address: bytes) -> Written | None:
        if name := self._virtual.get(address):
            targets: tuple[bytes, ...] = (name,)
        else:
            by_service = self._pointers.get(address, {})
            targets = tuple(target for key in sorted(by_service) for target in by_service[key])
        if not targets:
            return None
        return feed.write({Type.PTR: records.pointers(targets, self.settings.domain.ttl)}, foreign=True)

    def _under(self, kind: str) -> bytes:
        return to_wire(kind)[:-1] + self.settings.domain.wire

    def _static(self) -> dict[bytes, Written]:
        domain = self.settings.domain
        servers = self.settings.servers
        families = {Type.A: [ip for ip in servers if is_v4(ip)], Type.AAAA: [ip for ip in servers if not is_v4(ip)]}
        found: dict[bytes, Records] = {
            domain.wire: {
                Type.SOA: records.start_of_authority(domain.wire, self._serial, domain.ttl),
                Type.NS: records.name_server(domain.wire, domain.ttl, servers),
            },
            self._under("svc"): {},
            self._under("pod"): {},
            self._under("dns"): {},
            self._under("ns.dns"): {kind: records.addresses(ips, domain.ttl) for kind, ips in families.items() if ips},
            self._under("dns-version"): {Type.TXT: records.schema_version()},
        }
        return {name: feed.write(each) for name, each in found.items()}

    def _namespace_names(self) -> dict[bytes, Written]:
        """They exist, though nothing but names below them is to be had."""
        kinds = ("svc",) if self.settings.pods is PodRecords.DISABLED else ("svc", "pod")
        found = (below(self._under(kind), namespace) for kind in kinds for namespace in sorted(self._namespaces))
        return {name: feed.write({}) for name in found if name}

    def _pods_update(self) -> Update:
        insecure = self.settings.pods is PodRecords.INSECURE
        found = [below(self._under("pod"), namespace) for namespace in sorted(self._namespaces)] if insecure else []
        return ("pods", [name for name in found if name], self.settings.domain.ttl)


def _changes(old: Mapping[bytes, Written], new: Mapping[bytes, Written]) -> list[feed.Change]:
    """New names before old ones go: a name that moved is never missing."""
    changed: list[feed.Change] = [(name, found) for name, found in new.items() if old.get(name) != found]
    return changed + [(name, None) for name in old if name not in new]


def _families(slices: Iterable[EndpointSlice]) -> list[list[Endpoint]]:
    """The ready endpoints of each address family. DNS never falls back to those that terminate."""
    found: dict[str, list[Endpoint]] = {}
    for each in slices:
        ready = [endpoint for endpoint in each.endpoints or () if is_ready(endpoint)]
        found.setdefault(each.address_type, []).extend(ready)
    return [found[family] for family in sorted(found) if family != "FQDN"]
