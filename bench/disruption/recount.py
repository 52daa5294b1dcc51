"""CPU time of one budget count in the leader: pods in three zones, with charges and the status document.

`recount(pods)` returns the median CPU milliseconds; as a program it prints them for growing numbers of pods.
python -m bench.disruption.recount
"""

from __future__ import annotations

import statistics
import time
from typing import Final

import msgspec

from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.count import OwnerSlots, count
from zonewise.disruption.decide.ledger import LedgerEntry, ledger_of
from zonewise.disruption.decide.pods import ControllerRef, NodeDomains, Owner, PodFacts, Workload
from zonewise.disruption.decide.status import document, published
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.topology import ZONE

ZONES: Final = ("zone-a", "zone-b", "zone-c")
PODS_PER_NODE: Final = 20
CHARGES: Final = 30
NOW: Final = "2026-01-01T00:00:00Z"

ONE_PER_ZONE: Final = {
    "metadata": {"name": "web", "namespace": "shop", "generation": 1},
    "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "maxUnavailable": 1,
        "nodeSelectorTerm": {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]},
    },
}


def recount(pods: int, rounds: int = 21) -> float:
    """Each count starts without cached domains, as after any node change."""
    budget = Budget.parse(msgspec.convert(ONE_PER_ZONE, TopologyDisruptionBudget))
    nodes = {f"node-{number}": {ZONE: ZONES[number % 3]} for number in range(max(3, pods // PODS_PER_NODE))}
    running = [_pod(number, len(nodes)) for number in range(pods)]
    web = Workload(Owner("Deployment", "web", "deployment"), pods + 1)
    workloads = {"replicaset": web, "deployment": web}
    ledger = ledger_of(
        LedgerEntry(uid=f"uid-{number}", name=f"web-{number}", domain=ZONES[number % 3], owner="deployment", time=NOW)
        for number in range(CHARGES)
    )
    owner_slots: OwnerSlots = {}
    milliseconds = []
    for _ in range(rounds):
        started = time.process_time()
        census = count(budget, running, NodeDomains(nodes), workloads, ledger, owner_slots)
        document(published(budget, census, ledger, (), NOW))
        milliseconds.append((time.process_time() - started) * 1000)
        owner_slots = census.owner_slots
    assert sum(domain.healthy for domain in census.numbers.domains.values()) == pods - CHARGES
    return statistics.median(milliseconds)


def _pod(number: int, nodes: int) -> PodFacts:
    return PodFacts(
        uid=f"uid-{number}",
        name=f"web-{number}",
        namespace="shop",
        node=f"node-{number % nodes}",
        controller=ControllerRef("ReplicaSet", "web-1", "replicaset", "apps/v1"),
        ready=True,
        labels={"app": "web"},
    )


if __name__ == "__main__":
    for size in (1_000, 10_000, 100_000):
        print(f"{size:7d} pods: {recount(size):7.2f} ms")
