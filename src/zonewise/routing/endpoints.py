"""Endpoint conditions and usable endpoints, as routing counts them.

An endpoint is identified by its first address, the only one that proxies use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zonewise.objects import Endpoint


def is_ready(endpoint: Endpoint) -> bool:
    """As consumers of slices read it: an unset condition means ready."""
    return endpoint.conditions.ready is not False


def is_marked_ready(endpoint: Endpoint) -> bool:
    """As the stock EndpointSlice controller counts for hints: an unset condition means not ready."""
    return endpoint.conditions.ready is True


def is_draining(endpoint: Endpoint) -> bool:
    """Terminating but still serving: the fallback of proxies if no endpoint is ready."""
    return endpoint.conditions.serving is not False and endpoint.conditions.terminating is True


@dataclass(frozen=True, slots=True)
class UsableEndpoints:
    """The endpoints that take traffic, sorted by address; all `draining` if none is ready."""

    by_address: dict[str, Endpoint]
    draining: bool = False


def usable(endpoints: Iterable[Endpoint]) -> UsableEndpoints:
    ready: dict[str, Endpoint] = {}
    draining: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if not endpoint.addresses:
            continue
        if is_ready(endpoint):
            ready[endpoint.addresses[0]] = endpoint
        elif is_draining(endpoint):
            draining[endpoint.addresses[0]] = endpoint
    chosen = ready or draining
    return UsableEndpoints(
        {address: chosen[address] for address in sorted(chosen)}, draining=not ready and bool(draining)
    )
