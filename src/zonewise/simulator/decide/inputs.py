"""A user's own inputs: nodes and endpoints per zone from a CSV file or a cluster dump.

Errors are one line with the file and the row, and are raised before anything is computed.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zonewise import dump
from zonewise.errors import UsageError
from zonewise.objects import SERVICE_NAME, EndpointSlice, Node
from zonewise.topology import is_control_plane, is_ready, zone_of

MAX_COUNT: Final = 1_000_000
_COUNT: Final = re.compile(r"[0-9]+")
_COLUMNS: Final = "write columns `name` (optional), then nodes.ZONE and endpoints.ZONE for every zone"


class InputError(UsageError):
    """The file is not valid; the message says where, and what to write."""


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One input of the simulator; zones are in order of name."""

    name: str
    zones: tuple[str, ...]
    nodes: tuple[int, ...]
    endpoints: tuple[int, ...]


def read(text: str, source: str) -> list[NamedInput]:
    """CSV or a dump, detected by the text; `source` is its name in errors."""
    looks_like_dump = (
        source.endswith((".yaml", ".yml", ".json")) or text.lstrip()[:1] in {"{", "-"} or "apiVersion:" in text[:4096]
    )
    inputs = read_dump(text, source) if looks_like_dump else read_csv(text, source)
    if not inputs:
        raise InputError(f"{source}: no inputs; {_COLUMNS}, or give a dump with nodes and endpointslices")
    return inputs


def read_csv(text: str, source: str) -> list[NamedInput]:
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        zones = _zones(header, source)
        return [
            _input(header, zones, row, f"{source}:{rows.line_num}") for row in rows if any(cell.strip() for cell in row)
        ]
    except csv.Error as error:
        raise InputError(f"{source}:{rows.line_num}: not CSV: {error}") from error


def _zones(header: Sequence[str], source: str) -> tuple[str, ...]:
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise InputError(f"{source}:1: column {repeated[0]!r} stands twice")
    unknown = [name for name in header if name != "name" and not re.fullmatch(r"(nodes|endpoints)\..+", name)]
    if unknown:
        raise InputError(f"{source}:1: unknown column {unknown[0]!r}; {_COLUMNS}")
    by_kind = {
        kind: {name.partition(".")[2] for name in header if name.startswith(kind)} for kind in ("nodes.", "endpoints.")
    }
    if lone := by_kind["nodes."] ^ by_kind["endpoints."]:
        raise InputError(f"{source}:1: zone {min(lone)!r} has only one of its two columns; {_COLUMNS}")
    if not by_kind["nodes."]:
        raise InputError(f"{source}:1: no zone; {_COLUMNS}")
    return tuple(sorted(by_kind["nodes."]))


def _input(header: Sequence[str], zones: tuple[str, ...], row: Sequence[str], where: str) -> NamedInput:
    if len(row) != len(header):
        raise InputError(f"{where}: {len(row)} values for {len(header)} columns")
    cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
    counts = {name: _count(cells[name], name, where) for name in header if name != "name"}
    nodes = tuple(counts[f"nodes.{zone}"] for zone in zones)
    endpoints = tuple(counts[f"endpoints.{zone}"] for zone in zones)
    if not sum(nodes):
        raise InputError(f"{where}: no zone has a node, so there is no traffic to place")
    if not sum(endpoints):
        raise InputError(f"{where}: no zone has an endpoint, so there is nothing to place")
    return NamedInput(cells.get("name") or where, zones, nodes, endpoints)


def _count(text: str, column: str, where: str) -> int:
    if not _COUNT.fullmatch(text):
        raise InputError(f"{where}: {column} is {text!r}; write a whole number from 0 to {MAX_COUNT:,}")
    # int() rejects strings of thousands of digits.
    if len(text.lstrip("0")) > len(str(MAX_COUNT)) or int(text) > MAX_COUNT:
        raise InputError(f"{where}: {column} is {text[:20]}; write a whole number from 0 to {MAX_COUNT:,}")
    return int(text)


def read_dump(text: str, source: str) -> list[NamedInput]:
    """The output of `kubectl get nodes,services,endpointslices -A -o yaml` (or json)."""
    objects = dump.read(text.encode(), source, {"Node": Node, "EndpointSlice": EndpointSlice})
    nodes, slices = objects["Node"], objects["EndpointSlice"]
    if not nodes:
        raise InputError(f"{source}: no nodes in it; dump `kubectl get nodes,services,endpointslices -A -o yaml`")
    return from_cluster(nodes, slices)


def from_cluster(nodes: Iterable[Node], slices: Iterable[EndpointSlice]) -> list[NamedInput]:
    """One input per Service and address family with ready endpoints, over the zones of ready workers."""
    all_nodes = list(nodes)
    zone_by_node = {node.metadata.name: zone_of(node.metadata.labels) for node in all_nodes}
    clients = Counter(zone_by_node[node.metadata.name] for node in all_nodes if _sends_traffic(node))
    del clients[None]
    by_service: dict[str, Counter[str | None]] = {}
    for endpoint_slice in slices:
        endpoints = by_service.setdefault(_service(endpoint_slice), Counter())
        endpoints.update(
            _zone(endpoint.node_name, endpoint.zone, zone_by_node)
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.conditions.ready is not False
        )
    return [
        item for name, endpoints in sorted(by_service.items()) if (item := _cluster_input(name, clients, endpoints))
    ]


def _cluster_input(
    name: str, clients: Mapping[str | None, int], endpoints_by_zone: Mapping[str | None, int]
) -> NamedInput | None:
    zones = tuple(sorted({zone for zone in (*clients, *endpoints_by_zone) if zone}))
    endpoints = tuple(endpoints_by_zone.get(zone, 0) for zone in zones)
    if not sum(endpoints) or not clients:
        return None
    return NamedInput(name, zones, tuple(clients.get(zone, 0) for zone in zones), endpoints)


def _service(endpoint_slice: EndpointSlice) -> str:
    owner = endpoint_slice.metadata.labels.get(SERVICE_NAME, endpoint_slice.metadata.name)
    family = "" if endpoint_slice.address_type == "IPv4" else f" ({endpoint_slice.address_type})"
    return f"{endpoint_slice.metadata.namespace}/{owner}{family}"


def _zone(node: str | None, endpoint_zone: str | None, zone_by_node: Mapping[str, str | None]) -> str | None:
    return zone_by_node.get(node or "") or endpoint_zone or None


def _sends_traffic(node: Node) -> bool:
    return is_ready(node) and not is_control_plane(node.metadata.labels)
