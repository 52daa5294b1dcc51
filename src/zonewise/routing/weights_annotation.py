"""The weights annotation of slices: which zones consume which endpoints, and with what weight.

Hints cannot express weights, nor more than a few zones. The slice controller writes the rest on slices that several
zones share, and the node proxy reads it. A list is version 1 of the format; a later one is an object with its `version`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from zonewise.api.names import WEIGHTS
from zonewise.objects import stored
from zonewise.routing.load import Consumers

ByAddress = Mapping[str, Mapping[str, float]]
"""The weight with which each zone consumes an address."""


class _Entry(msgspec.Struct, frozen=True):
    zones: dict[str, float]
    addresses: list[str]


def write_weights(weighted: Mapping[str, Consumers], addresses: Iterable[str]) -> str:
    """The annotation for those of the addresses that have weights; empty if none has."""
    addresses_of: dict[Consumers, list[str]] = {}
    for address in addresses:
        if address in weighted:
            addresses_of.setdefault(weighted[address], []).append(address)
    entries = [_Entry(dict(consumers), sorted(addresses_of[consumers])) for consumers in sorted(addresses_of)]
    return msgspec.json.encode(entries).decode() if entries else ""


@lru_cache(maxsize=1024)
def read_weights(annotation: str) -> ByAddress:
    """One that can't be used counts as empty: endpoints are then shared evenly, by their hints."""
    try:
        entries = _parse(annotation)
    except stored.StoredError:
        return {}
    if any(not weight > 0 for entry in entries for weight in entry.zones.values()):
        return {}
    return {address: entry.zones for entry in entries for address in entry.addresses}


@lru_cache(maxsize=1024)
def weights_problem(annotation: str) -> str:
    """Why it can't be used; empty if it can."""
    try:
        _parse(annotation)
    except stored.StoredError as error:
        return str(error)
    return ""


def _parse(annotation: str) -> list[_Entry]:
    return stored.read(annotation, list[_Entry], f"annotation {WEIGHTS}") if annotation else []
