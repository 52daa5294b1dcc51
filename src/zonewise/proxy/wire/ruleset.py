"""All rules of one family, and the transaction from what the kernel has to what it should have. Pure state, no I/O.

`change` takes ports that changed and returns messages in proportion to the change; `whole` says everything at once, for
the start and for a repair. If the kernel refuses a change, nothing of it happened there: say `whole` next.
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
    """A front that more than one port claims; the one that is not the winner is left out."""

    frontend: Frontend
    winner: PortName
    loser: PortName


class Ruleset:
    def __init__(self, writer: ElementWriter, pods: Bounds = (), service_ranges: Bounds = ()) -> None:
        """The bounds of the ranges that pods of this node, and all cluster IPs, have their addresses from."""
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

    def contests(self) -> list[ElementConflict]:
        claimed = ((frontend, self._claims[frontend]) for frontend in sorted(self._contested))
        return [
            ElementConflict(frontend, claimants[0], loser) for frontend, claimants in claimed for loser in claimants[1:]
        ]

    def change(self, wanted: Mapping[PortName, PortRules | None]) -> list[Message]:
        """None for a port that is gone."""
        changed = {name: rules for name, rules in wanted.items() if self.ports.get(name) != rules}
        if not changed:
            return []
        if (moved := self._moved(changed)) is not None:
            return moved
        affected = self._rivals(changed)
        before = self._written(affected)
        for name, rules in changed.items():
            self._replace(name, rules)
        return list(self._messages(before, self._written(affected)))

    def _moved(self, changed: Mapping[PortName, PortRules | None]) -> list[Message] | None:
        """What most changes are, one port whose slots are others' now, without writing all of it twice; None if it is more."""
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

    def adopt(self, wanted: Mapping[PortName, PortRules | None]) -> None:
        """As `change`, for who is going to say `whole` anyway."""
        for name, rules in wanted.items():
            self._replace(name, rules)

    def whole(self, chains: Iterable[str] = (), sets: Iterable[str] = (), *, anew: bool = False) -> list[Message]:
        """Everything, in place of whatever is there: `chains` and `sets` are the names that the kernel's table has.

        Clients of sticky ports stay where they are, unless the table is made `anew`.
        """
        written = self._written(self.ports)
        self._counted = dict(written.counted)
        self._shared_chains = set(written.shared_chains)
        return list(self._everything(written, set(chains), set(sets), anew))

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
        """Whose cluster IP it is comes first, so that nobody can take it by an external IP; else by name."""
        return tuple(sorted(claimants, key=lambda name: (self.ports[name].cluster_ip != frontend.address, name)))

    def _rivals(self, changed: Mapping[PortName, PortRules | None]) -> set[PortName]:
        affected = set(changed)
        for name, rules in changed.items():
            for each in (self.ports.get(name), rules):
                for frontend in frontends(each) if each else ():
                    affected.update(self._claims.get(frontend, ()))
        return affected

    def _written(self, names: Iterable[PortName]) -> PortElements:
        fragment = PortElements()
        for name in names:
            if rules := self.ports.get(name):
                self._writer.write(rules, fragment, self._lost(name, rules))
        return fragment

    def _lost(self, name: PortName, rules: PortRules) -> frozenset[Frontend]:
        if not self._contested:
            return frozenset()
        return frozenset(frontend for frontend in frontends(rules) if self._claims[frontend][0] != name)

    def _messages(self, before: PortElements, after: PortElements) -> Iterator[Message]:
        """Made before they are named, emptied before they are filled anew, removed when nothing names them any more."""
        family = self._writer.family
        fresh = {name: chain for name, chain in after.shared_chains.items() if name not in self._shared_chains}
        self._shared_chains.update(fresh)
        rewritten = {name: chain for name, chain in after.chains.items() if before.chains.get(name) != chain}
        gone, added = self._count(before, after)
        had, has = _all_elements(before), _all_elements(after)
        sets = [made for name, made in after.sets.items() if name not in before.sets]
        yield from (messages.new_set(family, each, number) for number, each in enumerate(sets, 1))
        yield from (messages.new_chain(family, chain) for chain in (*fresh.values(), *rewritten.values()))
        yield from self._missing(had, has, gone)
        yield from (messages.flush_rules(family, name) for name in before.chains if name in rewritten)
        for chain in (*fresh.values(), *rewritten.values()):
            yield from messages.new_rules(family, chain)
        yield from self._new(had, has, added)
        stale = [name for name in before.chains if name not in after.chains]
        yield from (messages.flush_rules(family, name) for name in stale)
        yield from (messages.delete_chain(family, name) for name in stale)
        yield from (messages.delete_set(family, name) for name in before.sets if name not in after.sets)

    def _count(self, before: PortElements, after: PortElements) -> tuple[list[_Counted], list[_Counted]]:
        """The shared elements that nobody needs any more, and those that somebody needs for the first time."""
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

    def _missing(self, before: _Sets, after: _Sets, gone: Iterable[_Counted]) -> Iterator[Message]:
        for name, old in before.items():
            new = after.get(name, {})
            if keys := [key for key, value in old.items() if key not in new or new[key] != value]:
                yield from netlink.delete_elements(self.family_number, TABLE, name, keys)
        for name, key in gone:
            yield from netlink.delete_elements(self.family_number, TABLE, name, [key])

    def _new(self, before: _Sets, after: _Sets, added: Iterable[_Counted]) -> Iterator[Message]:
        for name, new in after.items():
            old = before.get(name, {})
            if fresh := {key: value for key, value in new.items() if key not in old or old[key] != value}:
                yield from netlink.add_elements(self.family_number, TABLE, name, fresh)
        for name, key in added:
            yield from netlink.add_elements(self.family_number, TABLE, name, {key: None})

    def _everything(self, written: PortElements, chains: set[str], sets: set[str], anew: bool) -> Iterator[Message]:
        family = self._writer.family
        fixed = layout.fixed_chains(family, self._writer.options)
        all_chains = {chain.name: chain for chain in fixed} | written.shared_chains | written.chains
        all_sets = {each.name: each for each in layout.fixed_sets(family)} | written.sets
        yield messages.new_table(family)
        if anew:
            yield messages.delete_table(family)
            yield messages.new_table(family)
            chains, sets = set(), set()
        yield from (messages.new_set(family, each, identity) for identity, each in enumerate(all_sets.values(), 1))
        yield from (messages.new_chain(family, chain) for chain in all_chains.values())
        yield messages.flush_rules(family)
        emptied = sets & {*FixedLayout, *written.picks, *(name for name in sets if name.startswith("p-"))}
        yield from (netlink.flush_elements(family.number, TABLE, name) for name in sorted(emptied))
        yield from self._filled(written, all_chains)
        yield from (messages.delete_chain(family, name) for name in sorted(chains - set(all_chains)))
        yield from (messages.delete_set(family, name) for name in sorted(sets - set(all_sets)))

    def _filled(self, written: PortElements, chains: Mapping[str, Chain]) -> Iterator[Message]:
        family = self._writer.family
        for chain in chains.values():
            yield from messages.new_rules(family, chain)
        counted: dict[str, dict[bytes, Value]] = {}
        for name, key in written.counted:
            counted.setdefault(name, {})[key] = None
        node_ips: dict[bytes, Value] = {family.pack(address): None for address in self._writer.node_addresses}
        for name, elements in (*written.elements.items(), *written.picks.items(), *counted.items()):
            yield from netlink.add_elements(family.number, TABLE, name, elements)
        yield from netlink.add_elements(family.number, TABLE, FixedLayout.NODE_IPS, node_ips)
        for name, bounds in self._ranges.items():
            yield from netlink.add_intervals(family.number, TABLE, name, bounds)


def _all_elements(fragment: PortElements) -> _Sets:
    return fragment.elements | fragment.picks
