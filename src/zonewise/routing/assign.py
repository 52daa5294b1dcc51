"""Which endpoint goes to which consumers, once the numbers are known: as few as possible change hands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from zonewise.routing.load import Composition, Consumers, names


def settle(
    previous: Mapping[str, Consumers], homes: Mapping[str, str], demand: Mapping[str, int]
) -> dict[str, Consumers]:
    """The last consumers of the endpoints that are still there, without the domains that are gone.

    An endpoint that nobody is left to consume is free, as a new one is.
    """
    left: dict[Consumers, Consumers] = {}
    for consumers in previous.values():
        if consumers not in left:
            left[consumers] = tuple(share for share in consumers if share.domain in demand)
    return {address: consumers for address in homes if address in previous and (consumers := left[previous[address]])}


def pick(composition: Composition, homes: Mapping[str, str], settled: Mapping[str, Consumers]) -> dict[str, Consumers]:
    """Every endpoint's consumers, by address; the composition must account for every endpoint of every home."""
    waiting: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    key = {consumers: names(consumers) for consumers in set(settled.values())}
    for address, home in homes.items():
        consumers = settled.get(address)
        waiting[home][key[consumers] if consumers else ()].append(address)
    picked: dict[str, Consumers] = {}
    short: dict[str, list[tuple[Consumers, int]]] = defaultdict(list)
    for consumers, wanted in composition.items():
        for home, count in wanted.items():
            kept = waiting[home][names(consumers)]
            picked.update(dict.fromkeys(kept[:count], consumers))
            short[home].append((consumers, count - len(kept[:count])))
            del kept[:count]
    for home, gaps in short.items():
        rest = sorted(address for addresses in waiting[home].values() for address in addresses)
        for consumers, count in gaps:
            picked.update(dict.fromkeys(rest[:count], consumers))
            del rest[:count]
    return picked


def moves(picked: Mapping[str, Consumers], settled: Mapping[str, Consumers]) -> int:
    """How many endpoints serve other domains than before; a new weight is no move."""
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
