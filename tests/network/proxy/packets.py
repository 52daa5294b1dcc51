"""First packets of connections, built and read by hand: TCP, UDP and SCTP over IPv4 and IPv6.

Each holds a cookie that translation leaves alone (TCP's sequence number, UDP's payload, SCTP's initiate tag), by which it
is recognised wherever it leaves, and in the answer of whoever rejects it.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address
from typing import NamedTuple

TCP, UDP, SCTP = socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_SCTP
PROTOCOLS = {"TCP": TCP, "UDP": UDP, "SCTP": SCTP}
_SYN, _RST, _ACK = 2, 4, 16
_INIT = 1
_PORT_UNREACHABLE = {(socket.IPPROTO_ICMP, 3, 3), (socket.IPPROTO_ICMPV6, 1, 4)}
"""Protocol, type and code of the message."""


class CapturedPacket(NamedTuple):
    """A first packet, or with `rejected` an answer that rejects it: then the addresses are those of the answer."""

    cookie: int
    source: str
    dest: str
    port: int
    rejected: bool = False


def first_packet(protocol: int, source: str, dest: str, ports: tuple[int, int], cookie: int) -> bytes:
    """`ports`: of the source and of the destination."""
    source_bytes, dest_bytes = ip_address(source).packed, ip_address(dest).packed
    if protocol == SCTP:
        payload = sctp_init(*ports, cookie)
    else:
        payload = _tcp_syn(*ports, cookie) if protocol == TCP else _udp(*ports, cookie)
        pseudo = source_bytes + dest_bytes + struct.pack(">II", len(payload), protocol)
        offset = 16 if protocol == TCP else 6
        checksum = _internet_checksum(pseudo + payload) or 0xFFFF
        payload = payload[:offset] + struct.pack(">H", checksum) + payload[offset + 2 :]
    if len(source_bytes) == 16:
        return struct.pack(">IHBB", 6 << 28, len(payload), protocol, 64) + source_bytes + dest_bytes + payload
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), cookie & 0xFFFF, 0, 64, protocol, 0)
    checksum = _internet_checksum(header + source_bytes + dest_bytes)
    return header[:10] + struct.pack(">H", checksum) + source_bytes + dest_bytes + payload


def sctp_init(source_port: int, port: int, tag: int = 1) -> bytes:
    """The first packet of an association, without an IP header."""
    chunk = struct.pack(">BBHIIHHI", _INIT, 0, 20, tag, 65535, 1, 1, 1)
    packet = struct.pack(">HHII", source_port, port, 0, 0) + chunk
    return packet[:8] + struct.pack("<I", _crc32c(packet)) + packet[12:]


def read_packet(packet: bytes) -> CapturedPacket | None:
    """None for all else that is on a network."""
    if packet[0] >> 4 == 4:
        start, protocol = 4 * (packet[0] & 15), packet[9]
        source, dest = packet[12:16], packet[16:20]
    else:
        start, protocol = 40, packet[6]
        source, dest = packet[8:24], packet[24:40]
    payload = packet[start:]
    if len(payload) < 8:
        return None
    if (protocol, payload[0], payload[1]) in _PORT_UNREACHABLE:
        inner = read_packet(payload[8:])
        return (
            None
            if inner is None
            else CapturedPacket(inner.cookie, str(ip_address(source)), str(ip_address(dest)), 0, True)
        )
    return read_payload(protocol, payload, str(ip_address(source)), str(ip_address(dest)))


def read_payload(protocol: int, payload: bytes, source: str, dest: str) -> CapturedPacket | None:
    """Of a packet that its message may have cut off after eight bytes."""
    port = struct.unpack_from(">H", payload, 2)[0]
    if protocol == UDP and len(payload) >= 12:
        return CapturedPacket(struct.unpack_from(">I", payload, 8)[0], source, dest, port)
    if protocol == SCTP and len(payload) >= 20 and payload[12] == _INIT:
        return CapturedPacket(struct.unpack_from(">I", payload, 16)[0], source, dest, port)
    if protocol == TCP and len(payload) < 14:
        return CapturedPacket(struct.unpack_from(">I", payload, 4)[0], source, dest, port)
    if protocol == TCP and payload[13] & _RST:
        return CapturedPacket(struct.unpack_from(">I", payload, 8)[0] - 1, source, dest, port, rejected=True)
    if protocol == TCP and payload[13] & (_SYN | _ACK) == _SYN:
        return CapturedPacket(struct.unpack_from(">I", payload, 4)[0], source, dest, port)
    return None


def _tcp_syn(source_port: int, port: int, cookie: int) -> bytes:
    return struct.pack(">HHIIBBHHH", source_port, port, cookie, 0, 5 << 4, _SYN, 65535, 0, 0)


def _udp(source_port: int, port: int, cookie: int) -> bytes:
    return struct.pack(">HHHHI", source_port, port, 12, 0, cookie)


def _internet_checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _crc32c(packet: bytes) -> int:
    """RFC 9260, appendix A."""
    crc = 0xFFFFFFFF
    for byte in packet:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
