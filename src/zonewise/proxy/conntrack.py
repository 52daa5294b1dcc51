"""Conntrack entries: removal of stale UDP flows, and reading of flows for traffic metrics.

Conntrack sends the packets of a flow to the endpoint of its first packet. TCP connections end; a UDP client that keeps
sending keeps its flow to a deleted endpoint alive for ever. After a change, the flows of the changed ports are dumped,
and those to targets that no longer serve are deleted.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import Counter

from zonewise.proxy.decide.rules import PortName, PortRules
from zonewise.proxy.decide.targets import EndpointTarget
from zonewise.proxy.wire.elements import Frontend, frontends
from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.netlink import DUMP, REQUEST, attributes, error_code, number, received

FORGOTTEN = Counter("zonewise_proxy_flows_forgotten", "Stale UDP flows removed from the kernel's table")

_SUBSYSTEM, _GET, _DELETE = 1, 1, 2
_ATTRIBUTE: Final = struct.Struct("=HH")
_IPV4_TUPLE: Final = struct.Struct(">8x4s4x4s8xB7xH6xH2x")
_IPV6_TUPLE: Final = struct.Struct(">8x16s4x16s8xB7xH6xH2x")
_COUNTERS: Final = struct.Struct(">16xQ")
_ACK: Final = 4
_UDP: Final = 17
_ERROR, _DONE = 2, 3
_FLOW: Final = 1 << 8
_STATUS, _STATUS_MASK = 3, 26
_DNAT: Final = 0x20


class ConntrackFlow(NamedTuple):
    """`carried` are bytes both ways, if the kernel counts them; `identity` has the attributes that identify the flow."""

    protocol: int
    source: bytes
    destination: bytes
    port: int
    answered_by: bytes
    answered_from: int
    carried: int
    identity: bytes


def stale_frontends(
    changed: Iterable[PortRules],
    family: Family,
    node_addresses: Iterable[str],
    lost: Container[tuple[PortName, Frontend]] = (),
) -> dict[tuple[bytes, int], frozenset[EndpointTarget]]:
    """For each address and port of the changed UDP ports, the targets whose flows are kept.

    A frontend that a port has `lost` leads to the endpoints of another Service, so its flows are not touched.
    """
    nodes = [address for address in node_addresses if family.owns(address)]
    return {
        (family.pack(address), frontend.port): rules.flows
        for rules in changed
        if rules.flows is not None
        for frontend in frontends(rules)
        if (rules.name, frontend) not in lost
        for address in _addresses(frontend, nodes)
    }


def _addresses(frontend: Frontend, nodes: list[str]) -> list[str]:
    return [frontend.address] if frontend.address else nodes


def stale(
    flow: ConntrackFlow, kept_targets: Mapping[tuple[bytes, int], frozenset[EndpointTarget]], family: Family
) -> bool:
    allowed = kept_targets.get((flow.destination, flow.port)) if flow.protocol == _UDP else None
    return allowed is not None and EndpointTarget(family.unpack(flow.answered_by), flow.answered_from) not in allowed


def forget(family: Family, kept_targets: Mapping[tuple[bytes, int], frozenset[EndpointTarget]]) -> int:
    """Delete stale flows; returns their number."""
    if not kept_targets:
        return 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12) as ct:
        ct.bind((0, 0))
        stale_flows = [flow for flow in _flows(ct, family) if stale(flow, kept_targets, family)]
        count = sum(_delete(ct, family, flow) for flow in stale_flows)
    FORGOTTEN.inc(count)
    return count


def translated(family: Family) -> Iterator[list[ConntrackFlow]]:
    """The flows with DNAT, in parts. Kernels before 5.15 ignore the filter and return all flows."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12) as ct:
        ct.bind((0, 0))
        yield from _parts(ct, family, number(_STATUS, _DNAT) + number(_STATUS_MASK, _DNAT))


def _flows(ct: socket.socket, family: Family) -> Iterator[ConntrackFlow]:
    for part in _parts(ct, family):
        yield from part


def _parts(ct: socket.socket, family: Family, status_filter: bytes = b"") -> Iterator[list[ConntrackFlow]]:
    ct.send(_message(_GET, family, REQUEST | DUMP, status_filter))
    while True:
        replies = list(received(ct.recv(1 << 18)))
        yield [flow for reply in replies if reply.kind == _FLOW and (flow := read_flow(reply.payload))]
        if any(reply.kind in {_DONE, _ERROR} for reply in replies):
            return


def _delete(ct: socket.socket, family: Family, flow: ConntrackFlow) -> bool:
    """False if it has ended meanwhile."""
    ct.send(_message(_DELETE, family, REQUEST | _ACK, flow.identity))
    for reply in received(ct.recv(1 << 16)):
        code = error_code(reply.payload)
        if code not in {0, errno.ENOENT}:
            raise OSError(code, "the kernel did not delete a stale UDP flow")
        return code == 0
    return False


def _message(kind: int, family: Family, flags: int, body: bytes = b"") -> bytes:
    header = struct.pack("=IHHIIBBH", 20 + len(body), _SUBSYSTEM << 8 | kind, flags, 1, 0, family.number, 0, 0)
    return header + body


def read_flow(payload: memoryview) -> ConntrackFlow | None:
    """Decode one message; None for a flow without ports. A single pass, as there may be many thousands."""
    original = reply = None
    carried, identity, offset, end = 0, b"", 4, len(payload)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if length < 4:
            break
        match kind & 0x3FFF:
            case 1:
                original = _tuple(payload[offset + 4 : offset + length])
                identity = bytes(payload[offset : offset + length]) + identity
            case 2:
                reply = _tuple(payload[offset + 4 : offset + length])
            case 9 | 10:  # counters of both directions
                carried += _bytes(payload[offset + 4 : offset + length])
            case 18:  # conntrack zone: addresses are unique only within one
                identity += bytes(payload[offset : offset + ((length + 3) & ~3)])
        offset += (length + 3) & ~3
    if original is None or reply is None:
        return None
    source, destination, protocol, _, port = original
    answered_by, _, _, answered_from, _ = reply
    return ConntrackFlow(protocol, source, destination, port, answered_by, answered_from, carried, identity)


def _bytes(counters: memoryview) -> int:
    if len(counters) == _COUNTERS.size:
        (carried,) = _COUNTERS.unpack(counters)
        return int(carried)
    return int.from_bytes(dict(attributes(counters)).get(2, b""), "big")


def _tuple(payload: memoryview) -> tuple[bytes, bytes, int, int, int] | None:
    """Source, destination, protocol and ports. Tuples with ports have one fixed length per family; None for others."""
    match len(payload):
        case 48:
            return _IPV4_TUPLE.unpack(payload)
        case 72:
            return _IPV6_TUPLE.unpack(payload)
        case _:
            return None
