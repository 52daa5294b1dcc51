"""The desired nftables ruleset of one family, and the transactions that bring the kernel to it. State without I/O.

`diff` takes changed ports and returns messages in proportion to the change; `full_sync` returns the whole table, for
the start and for a repair. If the kernel rejects a diff, none of it is applied: send a `full_sync` next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from zonewise.proxy.decide.rules import PortName, PortRules
from zonewise.proxy.wire import layout, messages, netlink
from zonewise.proxy.wire.elements import ElementWriter, Frontend, PortElements, frontends, moved_slots
from zonewise.proxy.wire.layout import TABLE, Chain, FixedLayout
from zonewise.proxy.wire.netlink import Message, Value

Bounds = Iterable[tuple[bytes, bool]]
_Counted = tuple[str, bytes]
_Sets = dict[str, dict[bytes, Value]]


class ElementConflict(NamedTuple):
    """A frontend that several ports claim; the loser's is left out."""

    frontend: Frontend
    winner: PortName
    loser: PortName


class Ruleset:
    def __init__(self, writer: ElementWriter, pods: Bounds = (), service_ranges: Bounds = ()) -> None:
        """`pods` and `service_ranges`: bounds of the CIDRs of this node's pods and of all cluster IPs."""
        self._writer = writer
        self._ranges = {FixedLayout.PODS: tuple(pods), FixedLayout.SERVICE_RANGES: tuple(service_ranges)}
        self.ports: dict[PortName, PortRules] = {}
        self._claims: dict[Frontend, tuple[PortName, ...]] = {}
        self._contested: set[Frontend] = set()
        self._counted: dict[tuple[str, bytes], int] = {}
        self._shared_chains: set[str] = set()

    @property
    def family_number(self) -> int:
        return self._writer.family.number

    def conflicts(self) -> list[ElementConflict]:
        claimed = ((frontend, self._claims[frontend]) for frontend in sorted(self._contested))
        return [
            ElementConflict(frontend, claimants[0], loser) for frontend, claimants in claimed for loser in claimants[1:]
        ]

    def diff(self, desired: Mapping[PortName, PortRules | None]) -> list[Message]:
        """Set the ports, None for a deleted one, and return the messages for what changed."""
        changed = {name: rules for name, rules in desired.items() if self.ports.get(name) != rules}
        if not changed:
            return []
        if (slot_changes := self._slot_changes(changed)) is not None:
            return slot_changes
        affected = self._affected(changed)
        before = self._elements(affected)
        for name, rules in changed.items():
            self._replace(name, rules)
        return list(self._diff_messages(before, self._elements(affected)))

    def _slot_changes(self, changed: Mapping[PortName, PortRules | None]) -> list[Message] | None:
        """Fast path of the common change: one port with other targets in its slots. None for anything else."""
        if len(changed) != 1 or self._contested:
            return None
        ((name, rules),) = changed.items()
        old = self.ports.get(name)
        moved = moved_slots(self._writer.family, old, rules) if old and rules else None
        if moved is None or rules is None:
            return None
        self.ports[name] = rules
        gone = netlink.delete_elements(self.family_number, TABLE, FixedLayout.ENDPOINTS, moved) if moved else ()
        return [*gone, *netlink.add_elements(self.family_number, TABLE, FixedLayout.ENDPOINTS, moved)]

    def adopt(self, desired: Mapping[PortName, PortRules | None]) -> None:
        """Set the ports without messages, before a `full_sync`."""
        for name, rules in desired.items():
            self._replace(name, rules)

    def full_sync(
        self, chains: Iterable[str] = (), sets: Iterable[str] = (), *, recreate: bool = False
    ) -> list[Message]:
        """Replace the kernel's table; `chains` and `sets` are the names of its current objects.

        Session affinity survives, unless the table is deleted and created again with `recreate`.
        """
        elements = self._elements(self.ports)
        self._counted = dict(elements.counted)
        self._shared_chains = set(elements.shared_chains)
        return list(self._full_messages(elements, set(chains), set(sets), recreate))

    def _replace(self, name: PortName, rules: PortRules | None) -> None:
        old = self.ports.pop(name, None)
        for frontend in set(frontends(old)) if old else ():
            self._claim(frontend, set(self._claims[frontend]) - {name})
        if rules is not None:
            self.ports[name] = rules
            for frontend in set(frontends(rules)):
                self._claim(frontend, {*self._claims.get(frontend, ()), name})

    def _claim(self, frontend: Frontend, claimants: set[PortName]) -> None:
        if not claimants:
            del self._claims[frontend]
        else:
            self._claims[frontend] = self._ranked(frontend, claimants) if len(claimants) > 1 else tuple(claimants)
        (self._contested.add if len(claimants) > 1 else self._contested.discard)(frontend)

    def _ranked(self, frontend: Frontend, claimants: set[PortName]) -> tuple[PortName, ...]:
        """By how hard it is to claim an address without a right to it: a cluster IP is assigned by the API server, the
        address of a load balancer by its controller, an external IP by every author of a Service. Then by age.
        """

        def rank(name: PortName) -> tuple[bool, bool, str, PortName]:
            rules = self.ports[name]
            external = frontend.address in rules.external_ips
            return rules.cluster_ip != frontend.address, external, rules.created, name

        return tuple(sorted(claimants, key=rank))

    def _affected(self, changed: Mapping[PortName, PortRules | None]) -> set[PortName]:
        affected = set(changed)
        for name, rules in changed.items():
            for state in (self.ports.get(name), rules):
                for frontend in frontends(state) if state else ():
                    affected.update(self._claims.get(frontend, ()))
        return affected

    def _elements(self, names: Iterable[PortName]) -> PortElements:
        elements = PortElements()
        for name in names:
            if rules := self.ports.get(name):
                self._writer.write(rules, elements, self._lost(name, rules))
        return elements

    def _lost(self, name: PortName, rules: PortRules) -> frozenset[Frontend]:
        if not self._contested:
            return frozenset()
        return frozenset(frontend for frontend in frontends(rules) if self._claims[frontend][0] != name)

    def _diff_messages(self, before: PortElements, after: PortElements) -> Iterator[Message]:
        """Objects are created before they are referenced, flushed before they are filled, and deleted last."""
        family = self._writer.family
        fresh = {name: chain for name, chain in after.shared_chains.items() if name not in self._shared_chains}
        self._shared_chains.update(fresh)
        rewritten = {name: chain for name, chain in after.chains.items() if before.chains.get(name) != chain}
        gone, added = self._count(before, after)
        had, has = _all_elements(before), _all_elements(after)
        sets = [nft_set for name, nft_set in after.sets.items() if name not in before.sets]
        yield from (messages.new_set(family, nft_set, number) for number, nft_set in enumerate(sets, 1))
        yield from (messages.new_chain(family, chain) for chain in (*fresh.values(), *rewritten.values()))
        yield from self._deletions(had, has, gone)
        yield from (messages.flush_rules(family, name) for name in before.chains if name in rewritten)
        for chain in (*fresh.values(), *rewritten.values()):
            yield from messages.new_rules(family, chain)
        yield from self._additions(had, has, added)
        stale = [name for name in before.chains if name not in after.chains]
        yield from (messages.flush_rules(family, name) for name in stale)
        yield from (messages.delete_chain(family, name) for name in stale)
        yield from (messages.delete_set(family, name) for name in before.sets if name not in after.sets)

    def _count(self, before: PortElements, after: PortElements) -> tuple[list[_Counted], list[_Counted]]:
        """The shared elements whose reference count fell to zero, and those whose count rose from zero."""
        gone: list[_Counted] = []
        added: list[_Counted] = []
        for shared in {**before.counted, **after.counted}:
            had = self._counted.pop(shared, 0)
            has = had - before.counted[shared] + after.counted[shared]
            if has:
                self._counted[shared] = has
            if bool(had) != bool(has):
                (added if has else gone).append(shared)
        return gone, added

    def _deletions(self, before: _Sets, after: _Sets, gone: Iterable[_Counted]) -> Iterator[Message]:
        for name, old in before.items():
            new = after.get(name, {})
            if keys := [key for key, value in old.items() if key not in new or new[key] != value]:
                yield from netlink.delete_elements(self.family_number, TABLE, name, keys)
        for name, key in gone:
            yield from netlink.delete_elements(self.family_number, TABLE, name, [key])

    def _additions(self, before: _Sets, after: _Sets, added: Iterable[_Counted]) -> Iterator[Message]:
        for name, new in after.items():
            old = before.get(name, {})
            if fresh := {key: value for key, value in new.items() if key not in old or old[key] != value}:
                yield from netlink.add_elements(self.family_number, TABLE, name, fresh)
        for name, key in added:
            yield from netlink.add_elements(self.family_number, TABLE, name, {key: None})

    def _full_messages(
        self, elements: PortElements, chains: set[str], sets: set[str], recreate: bool
    ) -> Iterator[Message]:
        family = self._writer.family
        fixed = layout.fixed_chains(family, self._writer.options)
        all_chains = {chain.name: chain for chain in fixed} | elements.shared_chains | elements.chains
        all_sets = {nft_set.name: nft_set for nft_set in layout.fixed_sets(family)} | elements.sets
        yield messages.new_table(family)
        if recreate:
            yield messages.delete_table(family)
            yield messages.new_table(family)
            chains, sets = set(), set()
        yield from (messages.new_set(family, nft_set, number) for number, nft_set in enumerate(all_sets.values(), 1))
        yield from (messages.new_chain(family, chain) for chain in all_chains.values())
        yield messages.flush_rules(family)
        flushed = sets & {*FixedLayout, *elements.picks, *(name for name in sets if name.startswith("p-"))}
        yield from (netlink.flush_elements(family.number, TABLE, name) for name in sorted(flushed))
        yield from self._fill(elements, all_chains)
        yield from (messages.delete_chain(family, name) for name in sorted(chains - set(all_chains)))
        yield from (messages.delete_set(family, name) for name in sorted(sets - set(all_sets)))

    def _fill(self, elements: PortElements, chains: Mapping[str, Chain]) -> Iterator[Message]:
        family = self._writer.family
        for chain in chains.values():
            yield from messages.new_rules(family, chain)
        counted: dict[str, dict[bytes, Value]] = {}
        for name, key in elements.counted:
            counted.setdefault(name, {})[key] = None
        node_ips: dict[bytes, Value] = {family.pack(address): None for address in self._writer.node_addresses}
        for name, values in (*elements.elements.items(), *elements.picks.items(), *counted.items()):
            yield from netlink.add_elements(family.number, TABLE, name, values)
        yield from netlink.add_elements(family.number, TABLE, FixedLayout.NODE_IPS, node_ips)
        for name, bounds in self._ranges.items():
            yield from netlink.add_intervals(family.number, TABLE, name, bounds)


def _all_elements(elements: PortElements) -> _Sets:
    return elements.elements | elements.picks
