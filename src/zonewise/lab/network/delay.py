"""Delay line: a process in a lab's router that delays packets between zones.

`python -m zonewise.lab.network.delay 5 20` makes tun devices delay0 (5 ms) and delay1 (20 ms). A packet routed into one comes
back out of it so much later, and the router sends it on. Standard library only, so that it starts fast.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_LARGEST_PACKET = 65536
_MOST_WAITING = 20_000  # as a router's buffer would, it drops what arrives at a full queue


class DelayLine:
    """Packets in order of arrival, each held until its time. Without clock or device."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._waiting: deque[tuple[float, bytes]] = deque()

    def put(self, packet: bytes, now: float) -> None:
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((now + self._delay_seconds, packet))

    def due(self, now: float) -> Iterator[bytes]:
        while self._waiting and self._waiting[0][0] <= now:
            yield self._waiting.popleft()[1]

    def next_due(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None


def main(latencies_ms: Sequence[str]) -> None:
    lines = {_tun(f"delay{index}"): DelayLine(float(latency) / 1000) for index, latency in enumerate(latencies_ms)}
    while True:
        readable, _, _ = select.select(list(lines), [], [], _pause(lines.values(), time.monotonic()))
        for device in readable:
            for packet in _arrived(device):
                lines[device].put(packet, time.monotonic())
        for device, line in lines.items():
            for packet in line.due(time.monotonic()):
                _send(device, packet)


def _pause(lines: Iterable[DelayLine], now: float) -> float | None:
    times = [due for line in lines if (due := line.next_due()) is not None]
    return max(0.0, min(times) - now) if times else None


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    return device


def _arrived(device: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(device, _LARGEST_PACKET)
        except BlockingIOError:
            return


def _send(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError as error:  # one malformed or unwelcome packet must not stop the line
        print(f"packet of {len(packet)} bytes dropped: {error}", file=sys.stderr)  # noqa: T201 - to its log


if __name__ == "__main__":
    main(sys.argv[1:])
