"""The two ends of the data path's measurement, each a process in a namespace of its own: who answers, and who connects."""

from __future__ import annotations

import json
import random
import socket
import statistics
import struct
import sys
import time

from bench.proxy.cluster import PORT, TARGET_PORT, cluster_ip

_RESET = struct.pack("ii", 1, 0)
WARM_UP = 100


def answer() -> None:
    """Every connection, to any address of this namespace, until killed."""
    with socket.create_server(("", TARGET_PORT), backlog=4096) as server:
        while True:
            server.accept()[0].close()


def connect(size: int, count: int, seed: int) -> dict[str, float]:
    """One after the other, each to a Service at random; reset, so that neither side keeps anything."""
    chance = random.Random(seed)
    addresses = [cluster_ip(chance.randrange(size)) for _ in range(WARM_UP + count)]
    for address in addresses[:WARM_UP]:
        _connect_once(address)
    begin = time.perf_counter()
    delays = [_connect_once(address) for address in addresses[WARM_UP:]]
    return {
        "connect p50 us": statistics.median(delays) * 1e6,
        "s per 10,000 connections": (time.perf_counter() - begin) / count * 10_000,
    }


def _connect_once(address: str) -> float:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        client.settimeout(5.0)
        begin = time.perf_counter()
        client.connect((address, PORT))
        return time.perf_counter() - begin


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        answer()
    else:
        print(json.dumps(connect(*map(int, sys.argv[2:]))))
