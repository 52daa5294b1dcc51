"""Stale UDP flows: the kernel remembers where a flow went, and would send its next packet to an endpoint that is gone.

TCP ends by itself; a UDP client that goes on sending keeps its flow alive for ever. After a change, the flows to the
ports that changed are looked at, and those to targets that no longer answer are forgotten.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import Counter

from zonewise.proxy.family import Family
from zonewise.proxy.fragment import Front, fronts
from zonewise.proxy.netlink import DUMP, REQUEST, attribute, attributes, nested, received
from zonewise.proxy.rules import PortRules
from zonewise.proxy.targets import Target

FORGOTTEN = Counter("zonewise_proxy_flows_forgotten", "Stale UDP flows removed from the kernel's table")

_SUBSYSTEM, _GET, _DELETE = 1, 1, 2
_ORIGINAL, _REPLY, _ZONE = 1, 2, 18
_COUNTERS: Final = (9, 10)
_ACK: Final = 4
_UDP: Final = 17
_ERROR, _DONE = 2, 3


class Flow(NamedTuple):
    """`carried` are bytes both ways, where the kernel counts them; `identity` is what names the flow to it."""

    protocol: int
    source: bytes
    destination: bytes
    port: int
    answered_by: bytes
    answered_from: int
    carried: int
    identity: bytes


def stale_fronts(
    changed: Iterable[PortRules], family: Family, node_addresses: Iterable[str]
) -> dict[tuple[bytes, int], frozenset[Target]]:
    """For each address and port of the changed UDP ports, the targets that its flows may go on to."""
    nodes = [address for address in node_addresses if family.owns(address)]
    return {
        (family.pack(address), front.port): rules.flows
        for rules in changed
        if rules.flows is not None
        for front in fronts(rules)
        for address in _addresses(front, nodes)
    }


def _addresses(front: Front, nodes: list[str]) -> list[str]:
    return [front.address] if front.address else nodes


def stale(flow: Flow, wanted: Mapping[tuple[bytes, int], frozenset[Target]], family: Family) -> bool:
    allowed = wanted.get((flow.destination, flow.port)) if flow.protocol == _UDP else None
    return allowed is not None and Target(family.unpack(flow.answered_by), flow.answered_from) not in allowed


def forget(family: Family, wanted: Mapping[tuple[bytes, int], frozenset[Target]]) -> int:
    """How many flows were removed."""
    if not wanted:
        return 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12) as tracked:
        tracked.bind((0, 0))
        doomed = [flow for flow in _flows(tracked, family) if stale(flow, wanted, family)]
        count = sum(_delete(tracked, family, flow) for flow in doomed)
    FORGOTTEN.inc(count)
    return count


def _flows(tracked: socket.socket, family: Family) -> Iterator[Flow]:
    tracked.send(_message(_GET, family, REQUEST | DUMP))
    while True:
        for answer in received(tracked.recv(1 << 18)):
            if answer.kind in {_DONE, _ERROR}:
                return
            if flow := read_flow(answer.payload):
                yield flow


def _delete(tracked: socket.socket, family: Family, flow: Flow) -> bool:
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


def read_flow(payload: memoryview) -> Flow | None:
    """Of one message of the kernel; None for a flow without ports."""
    parts = dict(attributes(payload[4:]))
    original, reply = _tuple(parts[_ORIGINAL]), _tuple(parts[_REPLY])
    if original is None or reply is None:
        return None
    identity = nested(_ORIGINAL, bytes(parts[_ORIGINAL]))
    if _ZONE in parts:
        identity += attribute(_ZONE, bytes(parts[_ZONE]))
    protocol, source, _, destination, port = original
    _, answered_by, answered_from, *_ = reply
    carried = sum(_bytes(parts[each]) for each in _COUNTERS if each in parts)
    return Flow(protocol, source, destination, port, answered_by, answered_from, carried, identity)


def _bytes(counters: memoryview) -> int:
    return int.from_bytes(dict(attributes(counters)).get(2, b""), "big")


def _tuple(payload: memoryview) -> tuple[int, bytes, int, bytes, int] | None:
    """Protocol, source and its port, destination and its port."""
    parts = dict(attributes(payload))
    addresses, transport = dict(attributes(parts[1])), dict(attributes(parts[2]))
    if 2 not in transport or 3 not in transport:
        return None
    source, destination = (1, 2) if 1 in addresses else (3, 4)
    source_port = int.from_bytes(transport[2], "big")
    port = int.from_bytes(transport[3], "big")
    return transport[1][0], bytes(addresses[source]), source_port, bytes(addresses[destination]), port
