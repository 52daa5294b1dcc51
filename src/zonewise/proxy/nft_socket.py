"""Netlink sockets to the kernel's nf_tables: transactions, dumps of names, and notifications of foreign changes.

No state is read back before a change: the caller keeps a copy of it, and `NftMonitor` reports changes by other programs.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from zonewise.errors import ZonewiseError
from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.layout import TABLE
from zonewise.proxy.wire.netlink import (
    DUMP,
    SUBSYSTEM,
    Message,
    MessageType,
    attributes,
    batch_bytes,
    error_code,
    message_bytes,
    received,
    text,
    text_of,
)

_NETFILTER: Final = 12
_ATTACH_FILTER, _SEND_BUFFER_FORCE, _RECEIVE_BUFFER_FORCE = 26, 32, 33
_LEVEL_NETLINK, _SHORT_ACKS, _ADD_MEMBERSHIP = 270, 10, 1
_GROUP_NFTABLES: Final = 7
_LARGEST_BATCH: Final = 512 << 20
_ERROR, _DONE = 2, 3


class NftRefusedError(ZonewiseError):
    """The kernel rejected a transaction as a whole; `message` is the first one with an error."""

    def __init__(self, code: int, message: Message | None) -> None:
        what = f"{MessageType(message.kind).name.lower().replace('_', ' ')}" if message else "the whole transaction"
        super().__init__(f"the kernel refused the rules at {what}: {os.strerror(code)}")
        self.code = code
        self.message = message


class NftSocket:
    """Bound to the network namespace in which it is created."""

    def __init__(self) -> None:
        self._socket = _open()
        self._sequence = 1

    @property
    def port(self) -> int:
        """The netlink port ID, which marks our own changes in notifications."""
        port: int = self._socket.getsockname()[0]
        return port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def commit(self, messages: Sequence[Message]) -> None:
        """Send one transaction. The kernel processes it within `send`, so its errors can be read at once."""
        if not messages:
            return
        first = self._sequence
        self._sequence = (first + len(messages) + 2) & 0x7FFFFFFF
        self._socket.send(batch_bytes(messages, first))
        if errors := self._errors():
            sequence, code = errors[0]
            index = sequence - first - 1
            raise NftRefusedError(code, messages[index] if 0 <= index < len(messages) else None)

    def _errors(self) -> list[tuple[int, int]]:
        """Sequence number and error code of each rejected message."""
        errors: list[tuple[int, int]] = []
        while True:
            try:
                datagram = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return errors
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                errors.append((0, errno.ENOBUFS))
                continue
            replies = [message for message in received(datagram) if message.kind == _ERROR]
            codes = [(message.sequence, error_code(message.payload)) for message in replies]
            errors += [(sequence, code) for sequence, code in codes if code]

    def chains(self, family: Family) -> set[str]:
        return self._names(MessageType.GET_CHAIN, family, 3)

    def sets(self, family: Family) -> set[str]:
        return self._names(MessageType.GET_SET, family, 2)

    def _names(self, kind: MessageType, family: Family, name: int) -> set[str]:
        """Names of the objects in our table; empty without such a table."""
        names: set[str] = set()
        for payload in self._dump(Message(kind, family.number, text(1, TABLE))):
            values = {key: text_of(value) for key, value in attributes(payload[4:]) if key in {1, name}}
            if values.get(1) == TABLE:
                names.add(values[name])
        return names

    def elements(self, family: Family, name: str) -> dict[bytes, bytes]:
        """Keys with their data, empty for verdicts. For tests and diagnostics, never for applying a change."""
        elements: dict[bytes, bytes] = {}
        for payload in self._dump(Message(MessageType.GET_ELEMENTS, family.number, text(1, TABLE) + text(2, name))):
            for kind, listed in attributes(payload[4:]):
                if kind == 3:
                    for _, one in attributes(listed):
                        parts = dict(attributes(one))
                        elements[bytes(parts[1][4:])] = bytes(parts[2][4:]) if 2 in parts else b""
        return elements

    def _dump(self, message: Message) -> list[memoryview]:
        self._sequence += 1
        sequence = self._sequence
        self._socket.send(message_bytes(message, sequence, DUMP))
        payloads: list[memoryview] = []
        while True:
            for reply in received(self._socket.recv(1 << 18)):
                if reply.sequence != sequence:
                    continue
                if reply.kind == _DONE:
                    return payloads
                if reply.kind == _ERROR:
                    code = error_code(reply.payload)
                    if code == errno.ENOENT:
                        return []
                    raise NftRefusedError(code, message)
                payloads.append(reply.payload)


class NftMonitor:
    """Notifications of changes to our tables by other programs; `fileno` becomes readable with each."""

    def __init__(self, own_port: int) -> None:
        self._own_port = own_port
        self._socket = _open()
        self._socket.setblocking(False)
        _ignore_sender(self._socket, own_port)
        self._socket.setsockopt(_LEVEL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def touched(self) -> bool:
        """Whether our tables changed since the last call, or may have because notifications were lost."""
        touched = False
        while True:
            try:
                datagram = self._socket.recv(1 << 16)
            except BlockingIOError:
                return touched
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                touched = True
                continue
            touched = touched or any(
                message.port != self._own_port and message.kind >> 8 == SUBSYSTEM and _is_ours(message.payload)
                for message in received(datagram)
            )


def _ignore_sender(monitor: socket.socket, port: int) -> None:
    """Drop notifications of our own changes in the kernel: those of a full sync would overflow the receive buffer.

    A classic BPF program drops messages whose sender, the fourth word of the header, is `port`.
    """
    import ctypes  # noqa: PLC0415 - only needed once the first rules are in place

    sender = struct.unpack(">I", struct.pack("=I", port))[0]
    load, compare, accept = 0x20, 0x15, 0x06
    steps = ((load, 0, 0, 12), (compare, 0, 1, sender), (accept, 0, 0, 0), (accept, 0, 0, 0xFFFFFFFF))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    monitor.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(steps), ctypes.addressof(program)))


def _is_ours(payload: memoryview) -> bool:
    return any(kind == 1 and text_of(value) == TABLE for kind, value in attributes(payload[4:]))


def _open() -> socket.socket:
    nft = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
    try:
        nft.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCE, _LARGEST_BATCH)
        nft.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 16 << 20)
        nft.setsockopt(_LEVEL_NETLINK, _SHORT_ACKS, 1)
        nft.bind((0, 0))
    except PermissionError:
        nft.close()
        raise ZonewiseError("may not change nftables: run as root, or with the capability CAP_NET_ADMIN") from None
    return nft


class Readable(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


async def readable(source: Readable) -> AsyncGenerator[None, None]:
    """Yield whenever there is something to read; close the source at the end.

    The event loop polls the source only while this generator is awaited: unread data would wake it again and again.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        while True:
            ready.clear()
            loop.add_reader(source.fileno(), ready.set)
            await ready.wait()
            loop.remove_reader(source.fileno())
            yield
    finally:
        loop.remove_reader(source.fileno())
        source.close()
