"""Stale UDP flows: the kernel remembers where a flow went, and would send its next packet to an endpoint that is gone.

TCP ends by itself; a UDP client that goes on sending keeps its flow alive for ever. After a change, the flows to the
ports that changed are looked at, and those to targets that no longer answer are forgotten.
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
from zonewise.proxy.wire.netlink import DUMP, REQUEST, attributes, number, received

FORGOTTEN = Counter("zonewise_proxy_flows_forgotten", "Stale UDP flows removed from the kernel's table")

_SUBSYSTEM, _GET, _DELETE = 1, 1, 2
_ATTRIBUTE: Final = struct.Struct("=HH")
_FOUR: Final = struct.Struct(">8x4s4x4s8xB7xH6xH2x")
_SIX: Final = struct.Struct(">8x16s4x16s8xB7xH6xH2x")
_COUNTED: Final = struct.Struct(">16xQ")
_ACK: Final = 4
_UDP: Final = 17
_ERROR, _DONE = 2, 3
_FLOW: Final = 1 << 8
_STATUS, _STATUS_MASK = 3, 26
_DNAT: Final = 0x20


class ConntrackFlow(NamedTuple):
    """`carried` are bytes both ways, where the kernel counts them; `identity` is what names the flow to it."""

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
    """For each address and port of the changed UDP ports, the targets that its flows may go on to.

    What a port has `lost` to another Service leads to that one's endpoints, and these flows are none of its business.
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


def stale(flow: ConntrackFlow, wanted: Mapping[tuple[bytes, int], frozenset[EndpointTarget]], family: Family) -> bool:
    allowed = wanted.get((flow.destination, flow.port)) if flow.protocol == _UDP else None
    return allowed is not None and EndpointTarget(family.unpack(flow.answered_by), flow.answered_from) not in allowed


def forget(family: Family, wanted: Mapping[tuple[bytes, int], frozenset[EndpointTarget]]) -> int:
    """How many flows were removed."""
    if not wanted:
        return 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12) as tracked:
        tracked.bind((0, 0))
        doomed = [flow for flow in _flows(tracked, family) if stale(flow, wanted, family)]
        count = sum(_delete(tracked, family, flow) for flow in doomed)
    FORGOTTEN.inc(count)
    return count


def translated(family: Family) -> Iterator[list[ConntrackFlow]]:
    """The flows whose destination was changed, some at a time. Kernels before 5.15 give all flows."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12) as tracked:
        tracked.bind((0, 0))
        yield from _parts(tracked, family, number(_STATUS, _DNAT) + number(_STATUS_MASK, _DNAT))


def _flows(tracked: socket.socket, family: Family) -> Iterator[ConntrackFlow]:
    for part in _parts(tracked, family):
        yield from part


def _parts(tracked: socket.socket, family: Family, chosen: bytes = b"") -> Iterator[list[ConntrackFlow]]:
    tracked.send(_message(_GET, family, REQUEST | DUMP, chosen))
    while True:
        answers = list(received(tracked.recv(1 << 18)))
        yield [flow for answer in answers if answer.kind == _FLOW and (flow := read_flow(answer.payload))]
        if any(answer.kind in {_DONE, _ERROR} for answer in answers):
            return


def _delete(tracked: socket.socket, family: Family, flow: ConntrackFlow) -> bool:
    """False where it ended by itself meanwhile."""
    tracked.send(_message(_DELETE, family, REQUEST | _ACK, flow.identity))
    for answer in received(tracked.recv(1 << 16)):
        code: int = -struct.unpack_from("=i", answer.payload)[0]
        if code not in {0, errno.ENOENT}:
            raise OSError(code, "the kernel would not forget a UDP flow")
        return code == 0
    return False


def _message(kind: int, family: Family, flags: int, body: bytes = b"") -> bytes:
    header = struct.pack("=IHHIIBBH", 20 + len(body), _SUBSYSTEM << 8 | kind, flags, 1, 0, family.number, 0, 0)
    return header + body


def read_flow(payload: memoryview) -> ConntrackFlow | None:
    """Of one message of the kernel; None for a flow without ports. In one pass: there may be many thousands."""
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
            case 9 | 10:  # what it carried there and back
                carried += _bytes(payload[offset + 4 : offset + length])
            case 18:  # its zone, of which addresses may mean different things
                identity += bytes(payload[offset : offset + ((length + 3) & ~3)])
        offset += (length + 3) & ~3
    if original is None or reply is None:
        return None
    source, destination, protocol, _, port = original
    answered_by, _, _, answered_from, _ = reply
    return ConntrackFlow(protocol, source, destination, port, answered_by, answered_from, carried, identity)


def _bytes(counters: memoryview) -> int:
    if len(counters) == _COUNTED.size:
        (carried,) = _COUNTED.unpack(counters)
        return int(carried)
    return int.from_bytes(dict(attributes(counters)).get(2, b""), "big")


def _tuple(payload: memoryview) -> tuple[bytes, bytes, int, int, int] | None:
    """Source, destination, protocol, and their ports: always as long where there are such, and longer or shorter else."""
    match len(payload):
        case 48:
            return _FOUR.unpack(payload)
        case 72:
            return _SIX.unpack(payload)
        case _:
            return None
