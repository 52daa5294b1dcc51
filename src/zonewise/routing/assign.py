"""Assignment of endpoints to consumers for given counts, with as few moves as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from zonewise.routing.load import Composition, Consumers, names


def settle(
    previous: Mapping[str, Consumers], homes: Mapping[str, str], demand: Mapping[str, int]
) -> dict[str, Consumers]:
    """The last consumers of the endpoints that still exist, without domains that are gone.

    An endpoint without a remaining consumer is free, like a new one.
    """
    remaining: dict[Consumers, Consumers] = {}
    for consumers in previous.values():
        if consumers not in remaining:
            remaining[consumers] = tuple(share for share in consumers if share.domain in demand)
    return {
        address: consumers for address in homes if address in previous and (consumers := remaining[previous[address]])
    }


def pick(composition: Composition, homes: Mapping[str, str], settled: Mapping[str, Consumers]) -> dict[str, Consumers]:
    """The consumers of every endpoint, by address. The composition must cover all endpoints of all homes."""
    unassigned: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    names_of = {consumers: names(consumers) for consumers in set(settled.values())}
    for address, home in homes.items():
        consumers = settled.get(address)
        unassigned[home][names_of[consumers] if consumers else ()].append(address)
    picked: dict[str, Consumers] = {}
    missing_by_home: dict[str, list[tuple[Consumers, int]]] = defaultdict(list)
    for consumers, counts in composition.items():
        for home, count in counts.items():
            kept = unassigned[home][names(consumers)]
            picked.update(dict.fromkeys(kept[:count], consumers))
            missing_by_home[home].append((consumers, count - len(kept[:count])))
            del kept[:count]
    for home, missing in missing_by_home.items():
        left_over = sorted(address for addresses in unassigned[home].values() for address in addresses)
        for consumers, count in missing:
            picked.update(dict.fromkeys(left_over[:count], consumers))
            del left_over[:count]
    return picked


def moves(picked: Mapping[str, Consumers], settled: Mapping[str, Consumers]) -> int:
    """The number of endpoints that serve other domains than before; a new weight is no move."""
    changed = [
        (consumers, picked[address]) for address, consumers in settled.items() if picked[address] is not consumers
    ]
    return sum(before != after and names(before) != names(after) for before, after in changed)


def compose(assigned: Mapping[str, Consumers], homes: Mapping[str, str]) -> Composition:
    composition: Composition = {}
    for address, consumers in assigned.items():
        counts = composition.setdefault(consumers, {})
        home = homes[address]
        counts[home] = counts.get(home, 0) + 1
    return composition
