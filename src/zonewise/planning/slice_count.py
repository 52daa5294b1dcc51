"""How many slices a Service's endpoints are written into, by whoever writes them. Pure.

In mode own that is our controller, which parts them by who consumes them. Beside the stock controller they stay where
they are: hints are laid over its slices, and only endpoints that come or go change how many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from zonewise.objects import Endpoint, EndpointSlice
from zonewise.slices.decide.endpoints import ByPorts
from zonewise.slices.decide.plan import MOST_PER_SLICE
from zonewise.slices.decide.route import RoutedEndpoints


def own(routed: RoutedEndpoints) -> int:
    """A Service without endpoints has one empty slice."""
    return sum(_slices_for(len(endpoints)) for endpoints in routed.desired.values()) or 1


def stock(by_ports: ByPorts, slices: Iterable[EndpointSlice]) -> int:
    """`slices` are those there now, of one family; a Service without endpoints has one empty slice."""
    there: dict[frozenset[object], list[Collection[str]]] = {}
    for found in slices:
        if found.metadata.deletion_timestamp is None and found.endpoints:
            addresses = {address for endpoint in found.endpoints for address in endpoint.addresses[:1]}
            there.setdefault(frozenset(found.ports or ()), []).append(addresses)
    return sum(_of_ports(found, there.get(frozenset(ports), [])) for ports, found in by_ports.items()) or 1


def _of_ports(endpoints: Sequence[Endpoint], slices: Sequence[Collection[str]]) -> int:
    """As the stock reconciler fills them: first the slices that lost something, then one with room for all the rest.

    It never moves endpoints to have fewer slices, so that a change of one pod is a change of one slice.
    """
    wanted = {endpoint.addresses[0] for endpoint in endpoints if endpoint.addresses}
    kept = [len(wanted.intersection(held)) for held in slices]
    changed = [number for number, held in zip(kept, slices, strict=True) if 0 < number < len(held)]
    whole = [number for number, held in zip(kept, slices, strict=True) if number == len(held)]
    rest = max(0, len(wanted) - sum(kept) - sum(MOST_PER_SLICE - number for number in changed))
    last = rest % MOST_PER_SLICE
    fits = last and any(number + last <= MOST_PER_SLICE for number in whole)
    return len(changed) + len(whole) + rest // MOST_PER_SLICE + (1 if last and not fits else 0)


def _slices_for(endpoints: int) -> int:
    return -(-endpoints // MOST_PER_SLICE)
