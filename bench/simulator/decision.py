"""One process that decides for a Service of 5,000 endpoints over 8 zones, and prints the median CPU milliseconds.

python -m bench.simulator.decision ALGORITHM even|skewed
"""

from __future__ import annotations

import statistics
import sys
import time

from zonewise.objects import Condition, Endpoint, EndpointConditions, Metadata, Node, NodeStatus, Service
from zonewise.routing import RoutingNodes, decide

ZONES = [f"zone-{letter}" for letter in "abcdefgh"]
NODES_PER_ZONE = 12
ENDPOINTS = 5_000


def cluster() -> RoutingNodes:
    ready = NodeStatus(conditions=(Condition(type="Ready", status="True"),))
    return RoutingNodes.of(
        Node(metadata=Metadata(name=f"{zone}-{number}", labels={"topology.kubernetes.io/zone": zone}), status=ready)
        for zone in ZONES
        for number in range(NODES_PER_ZONE)
    )


def counts(spread: str) -> list[int]:
    if spread == "even":
        return [ENDPOINTS // len(ZONES)] * len(ZONES)
    few = ENDPOINTS // 10 // (len(ZONES) - 1)
    return [ENDPOINTS - few * (len(ZONES) - 1), *[few] * (len(ZONES) - 1)]


def endpoints(spread: str) -> list[Endpoint]:
    ready = EndpointConditions(ready=True)
    homes = [zone for zone, count in zip(ZONES, counts(spread), strict=True) for _ in range(count)]
    return [
        Endpoint(
            addresses=(f"10.0.{at // 250}.{at % 250}",), node_name=f"{home}-{at % NODES_PER_ZONE}", conditions=ready
        )
        for at, home in enumerate(homes)
    ]


def main(algorithm: str, spread: str) -> None:
    asked = {"endpointslice.kubernetes.io/same-zone": "Prefer", "zonewise.dev/algorithm": algorithm}
    service = Service(metadata=Metadata(name="web", namespace="shop", annotations=asked))
    where, found = cluster(), endpoints(spread)
    taken = []
    for _ in range(21):
        begin = time.process_time()
        decide(service, found, where)
        taken.append((time.process_time() - begin) * 1000)
    assert "numba" not in sys.modules, "the controller never pays for the simulator"
    print(statistics.median(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
