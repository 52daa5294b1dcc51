"""Weights as slices carry them: an annotation says who consumes which of a slice's endpoints, and with what weight.

Hints can't say weights, nor more than a few zones. The slice controller writes what they leave out beside the slices
that several zones share, and the node proxy reads it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from zonewise.routing.load import Consumers

ByAddress = Mapping[str, Mapping[str, float]]
"""The weight with which each zone consumes an address."""


class _Entry(msgspec.Struct, frozen=True):
    zones: dict[str, float]
    addresses: list[str]


def write_weights(weighted: Mapping[str, Consumers], addresses: Iterable[str]) -> str:
    """Of those addresses that have something to say; empty if none has."""
    found: dict[Consumers, list[str]] = {}
    for address in addresses:
        if address in weighted:
            found.setdefault(weighted[address], []).append(address)
    entries = [_Entry(dict(consumers), sorted(found[consumers])) for consumers in sorted(found)]
    return msgspec.json.encode(entries).decode() if entries else ""


@lru_cache(maxsize=1024)
def read_weights(written: str) -> ByAddress:
    """What nobody could have written so says nothing: endpoints are then shared evenly, by their hints."""
    try:
        entries = msgspec.json.decode(written, type=list[_Entry]) if written else []
    except msgspec.DecodeError:
        return {}
    if any(not weight > 0 for entry in entries for weight in entry.zones.values()):
        return {}
    return {address: entry.zones for entry in entries for address in entry.addresses}
