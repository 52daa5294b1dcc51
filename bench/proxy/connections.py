"""Server and client of the data path measurement, each a process in its own namespace."""

from __future__ import annotations

import json
import random
import socket
import statistics
import struct
import sys
import time
from typing import Final

from bench.proxy.cluster import PORT, TARGET_PORT, cluster_ip

_RESET: Final = struct.pack("ii", 1, 0)
WARM_UP: Final = 100


def serve() -> None:
    """Accept connections to any address of this namespace until killed."""
    with socket.create_server(("", TARGET_PORT), backlog=4096) as server:
        while True:
            server.accept()[0].close()


def connect(size: int, count: int, seed: int) -> dict[str, float]:
    """Connect one after the other, each to a random Service; with a reset, so that no state remains."""
    rng = random.Random(seed)
    addresses = [cluster_ip(rng.randrange(size)) for _ in range(WARM_UP + count)]
    for address in addresses[:WARM_UP]:
        _connect_once(address)
    started = time.perf_counter()
    delays = [_connect_once(address) for address in addresses[WARM_UP:]]
    return {
        "connect p50 us": statistics.median(delays) * 1e6,
        "s per 10,000 connections": (time.perf_counter() - started) / count * 10_000,
    }


def _connect_once(address: str) -> float:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        client.settimeout(5.0)
        started = time.perf_counter()
        client.connect((address, PORT))
        return time.perf_counter() - started


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        print(json.dumps(connect(*map(int, sys.argv[2:]))))
