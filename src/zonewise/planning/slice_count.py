"""The number of EndpointSlices that a Service's endpoints need. Pure.

In mode own the Zonewise controller groups endpoints by their consumers. In mode overlay the stock controller's slices
stay as they are: hints are added to them, and only endpoints that come or go change their number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from zonewise.objects import Endpoint, EndpointSlice
from zonewise.slices.decide.endpoints import ByPorts
from zonewise.slices.decide.plan import MOST_PER_SLICE
from zonewise.slices.decide.route import RoutedEndpoints


def count_own(routed: RoutedEndpoints) -> int:
    """A Service without endpoints has one empty slice."""
    return sum(-(-len(endpoints) // MOST_PER_SLICE) for endpoints in routed.desired.values()) or 1


def count_stock(by_ports: ByPorts, slices: Iterable[EndpointSlice]) -> int:
    """`slices` are the present ones, of one family. A Service without endpoints has one empty slice."""
    present: dict[frozenset[object], list[Collection[str]]] = {}
    for slice_ in slices:
        if slice_.metadata.deletion_timestamp is None and slice_.endpoints:
            addresses = {address for endpoint in slice_.endpoints for address in endpoint.addresses[:1]}
            present.setdefault(frozenset(slice_.ports or ()), []).append(addresses)
    return (
        sum(_count_for_ports(endpoints, present.get(frozenset(ports), [])) for ports, endpoints in by_ports.items())
        or 1
    )


def _count_for_ports(endpoints: Sequence[Endpoint], slices: Sequence[Collection[str]]) -> int:
    """As the stock reconciler fills slices: first those that lost endpoints, then one with room for all the rest.

    It never moves endpoints to save slices, so a change of one pod is a change of one slice.
    """
    addresses = {endpoint.addresses[0] for endpoint in endpoints if endpoint.addresses}
    kept = [len(addresses.intersection(held)) for held in slices]
    changed = [number for number, held in zip(kept, slices, strict=True) if 0 < number < len(held)]
    unchanged = [number for number, held in zip(kept, slices, strict=True) if number == len(held)]
    rest = max(0, len(addresses) - sum(kept) - sum(MOST_PER_SLICE - number for number in changed))
    last = rest % MOST_PER_SLICE
    fits = last and any(number + last <= MOST_PER_SLICE for number in unchanged)
    return len(changed) + len(unchanged) + rest // MOST_PER_SLICE + (1 if last and not fits else 0)
