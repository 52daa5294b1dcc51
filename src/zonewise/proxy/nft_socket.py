"""The kernel's nf_tables over a netlink socket: transactions, names of what is there, and word of what others change.

Nothing is read back to apply a change: whoever calls knows what the kernel has, and is told when somebody else has
changed it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

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
    """The kernel took nothing of a transaction; `message` is the first one it did not like."""

    def __init__(self, code: int, message: Message | None) -> None:
        what = f"{MessageType(message.kind).name.lower().replace('_', ' ')}" if message else "the whole transaction"
        super().__init__(f"the kernel refused the rules at {what}: {os.strerror(code)}")
        self.code = code
        self.message = message


class NftSocket:
    """Of the network namespace in which it is made."""

    def __init__(self) -> None:
        self._socket = _open()
        self._sequence = 1

    @property
    def port(self) -> int:
        """By which the kernel tells our changes from those of others."""
        port: int = self._socket.getsockname()[0]
        return port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def commit(self, messages: Sequence[Message]) -> None:
        """All of it or nothing. The kernel works while we send: its complaints are there when it returns."""
        if not messages:
            return
        first = self._sequence
        self._sequence = (first + len(messages) + 2) & 0x7FFFFFFF
        self._socket.send(batch_bytes(messages, first))
        if refused := self._complaints():
            sequence, code = refused[0]
            index = sequence - first - 1
            raise NftRefusedError(code, messages[index] if 0 <= index < len(messages) else None)

    def _complaints(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while True:
            try:
                datagram = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found.append((0, errno.ENOBUFS))
                continue
            answers = [message for message in received(datagram) if message.kind == _ERROR]
            codes = [(message.sequence, -struct.unpack_from("=i", message.payload)[0]) for message in answers]
            found += [(sequence, code) for sequence, code in codes if code]

    def chains(self, family: Family) -> set[str]:
        return self._names(MessageType.GET_CHAIN, family, 3)

    def sets(self, family: Family) -> set[str]:
        return self._names(MessageType.GET_SET, family, 2)

    def _names(self, kind: MessageType, family: Family, name: int) -> set[str]:
        """Those in our table; none when there is no such table."""
        found: set[str] = set()
        for payload in self._dump(Message(kind, family.number, text(1, TABLE))):
            said = {key: text_of(value) for key, value in attributes(payload[4:]) if key in {1, name}}
            if said.get(1) == TABLE:
                found.add(said[name])
        return found

    def elements(self, family: Family, name: str) -> dict[bytes, bytes]:
        """Keys, and data where it is no verdict; for looking closely, never for applying a change."""
        found: dict[bytes, bytes] = {}
        for payload in self._dump(Message(MessageType.GET_ELEMENTS, family.number, text(1, TABLE) + text(2, name))):
            for kind, listed in attributes(payload[4:]):
                if kind == 3:
                    for _, one in attributes(listed):
                        parts = dict(attributes(one))
                        found[bytes(parts[1][4:])] = bytes(parts[2][4:]) if 2 in parts else b""
        return found

    def _dump(self, message: Message) -> list[memoryview]:
        self._sequence += 1
        asked = self._sequence
        self._socket.send(message_bytes(message, asked, DUMP))
        found: list[memoryview] = []
        while True:
            for answer in received(self._socket.recv(1 << 18)):
                if answer.sequence != asked:
                    continue
                if answer.kind == _DONE:
                    return found
                if answer.kind == _ERROR:
                    code = -struct.unpack_from("=i", answer.payload)[0]
                    if code == errno.ENOENT:
                        return []
                    raise NftRefusedError(code, message)
                found.append(answer.payload)


class NftMonitor:
    """Word of changes to our tables by others, `fileno` of which becomes readable."""

    def __init__(self, ours: int) -> None:
        self._ours = ours
        self._socket = _open()
        self._socket.setblocking(False)
        _hide(self._socket, ours)
        self._socket.setsockopt(_LEVEL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def touched(self) -> bool:
        """Whether others changed our tables since the last call, or may have: so much happened that word was lost."""
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
                message.port != self._ours and message.kind >> 8 == SUBSYSTEM and _is_ours(message.payload)
                for message in received(datagram)
            )


def _hide(watching: socket.socket, port: int) -> None:
    """Let the kernel keep back word of what `port` itself does: of a whole table it would be more than we can hold.

    A classic BPF program: of a message whose sender, in its header's fourth word, is the port, take nothing.
    """
    import ctypes  # noqa: PLC0415 - not before the first rules are in place

    sender = struct.unpack(">I", struct.pack("=I", port))[0]
    load, compare, give = 0x20, 0x15, 0x06
    steps = ((load, 0, 0, 12), (compare, 0, 1, sender), (give, 0, 0, 0), (give, 0, 0, 0xFFFFFFFF))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    watching.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(steps), ctypes.addressof(program)))


def _is_ours(payload: memoryview) -> bool:
    return any(kind == 1 and text_of(value) == TABLE for kind, value in attributes(payload[4:]))


def _open() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCE, _LARGEST_BATCH)
        opened.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 16 << 20)
        opened.setsockopt(_LEVEL_NETLINK, _SHORT_ACKS, 1)
        opened.bind((0, 0))
    except PermissionError:
        opened.close()
        raise ZonewiseError("may not change nftables: run as root, or with the capability CAP_NET_ADMIN") from None
    return opened
