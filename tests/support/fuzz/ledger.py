"""Stored status and ledger of a budget: read, written and read again, nothing changes."""

from __future__ import annotations

import json

import msgspec

from support.fuzz import budgets
from zonewise.disruption.decide import status
from zonewise.objects.policy import TopologyDisruptionBudget

STATUS = {
    "observedGeneration": 1,
    "expectedPods": 3,
    "currentHealthy": 3,
    "disruptionsAllowed": 1,
    "domains": [{"name": "zone-a", "slots": 3, "healthy": 3, "target": 3, "desired": 2, "allowed": 1}],
    "surplus": [{"owner": "o", "pods": 1}],
    "outside": [{"domain": "zone-b", "slots": 1}],
    "charges": "u1 web-1 zone-a o1 2026-01-01T00:00:00Z Eviction\nu2 web-2 - - t Delete confirmed\n",
    "departures": [{"owner": "o", "domain": "zone-a", "missing": 1, "slots": 2, "outside": True}],
    "conditions": [{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods"}],
}
SEEDS = [json.dumps({**json.loads(seed), "status": STATUS}).encode() for seed in budgets.SEEDS]
WORDS = (
    *STATUS,
    "u1",
    "web-1",
    "zone-a",
    "-",
    "t",
    "Eviction",
    "Delete",
    "Rollout",
    "ScaleDown",
    "confirmed",
    "u1 web-1 zone-a o1 t Eviction\n",
)


def check(data: bytes) -> None:
    if (found := budgets.budget_in(data)) is None:
        return
    stored, budget = found
    try:
        published = status.read(budget, stored)
    except msgspec.ValidationError:
        return
    written = status.document(published)
    again = msgspec.json.decode(msgspec.json.encode({"metadata": {}, "status": written}), type=TopologyDisruptionBudget)
    assert status.read(budget, again).ledger == published.ledger
