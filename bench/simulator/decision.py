"""One process that decides the routing of a Service with 5,000 endpoints in 8 zones, and prints the median CPU ms.

python -m bench.simulator.decision ALGORITHM even|skewed
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Final

from zonewise.objects import Condition, Endpoint, EndpointConditions, Metadata, Node, NodeStatus, Service
from zonewise.routing import RoutingNodes, decide

ZONES: Final = [f"zone-{letter}" for letter in "abcdefgh"]
NODES_PER_ZONE: Final = 12
ENDPOINTS: Final = 5_000


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
    zones = [zone_name for zone_name, count in zip(ZONES, counts(spread), strict=True) for _ in range(count)]
    return [
        Endpoint(
            addresses=(f"10.0.{number // 250}.{number % 250}",),
            node_name=f"{zone}-{number % NODES_PER_ZONE}",
            conditions=ready,
        )
        for number, zone in enumerate(zones)
    ]


def main(algorithm: str, spread: str) -> None:
    annotations = {"endpointslice.kubernetes.io/same-zone": "Prefer", "zonewise.dev/algorithm": algorithm}
    service = Service(metadata=Metadata(name="web", namespace="shop", annotations=annotations))
    nodes, endpoint_list = cluster(), endpoints(spread)
    milliseconds = []
    for _ in range(21):
        started = time.process_time()
        decide(service, endpoint_list, nodes)
        milliseconds.append((time.process_time() - started) * 1000)
    assert "numba" not in sys.modules, "the controller does not load numba"
    print(statistics.median(milliseconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
