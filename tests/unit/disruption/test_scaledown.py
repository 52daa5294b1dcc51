"""Which pods a shrinking ReplicaSet is let delete, so that the zones are even when it is done; and who no longer is."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from unit.disruption.paper import BUDGET, Paper, budget, replica_pod
from zonewise.api.names import GRANTED
from zonewise.disruption.watch.informers import WorkloadKey
from zonewise.objects import PODS, Key, Pod
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS, TopologyDisruptionBudget

WEB = WorkloadKey("ReplicaSet", Key("shop", "web"))
FOUR_EACH = [f"{zone}{number}" for zone in "abc" for number in range(4)]


@pytest.mark.parametrize("unready", [(), ("a0",), ("b2",), ("a1", "c3"), ("a0", "b0", "c0")], ids=str)
async def test_pods_that_go_anyway_are_counted_where_they_leave(unready: tuple[str, ...]) -> None:
    """Its controller takes pods that are not ready first, and unasked: granted are those that make it even with them."""
    paper = Paper("abc", lambda: 1000.0)
    paper.shrink(9, *FOUR_EACH, unready=unready)
    await paper.publisher._reconcile(BUDGET)
    await paper.scale_down._reconcile(WEB)
    left = Counter(name[0] for name in FOUR_EACH if name not in {*unready, *paper.server.tried})
    assert left == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize(
    ("change", "revoked"),
    [
        ({}, []),
        ({"enforcement": "Off"}, ["a0"]),
        ({"enforcement": "DryRun"}, ["a0"]),
        ({"applyTo": ["Evictions"]}, ["a0"]),
        ({"selector": {"matchLabels": {"app": "other"}}}, ["a0"]),
    ],
    ids=str,
)
async def test_grants_end_with_what_they_were_needed_for(change: dict[str, Any], revoked: list[str]) -> None:
    """Who is granted counts as about to leave, and stays charged: for ever, if its controller need not ask any more."""
    paper = Paper("abc", lambda: 1000.0)
    paper.shrink(1, "a0", "b0")
    granted = replica_pod("a0", version=2)
    granted["metadata"]["annotations"] = {GRANTED: "uid-a0"}
    paper.change(PODS, msgspec.convert(granted, Pod))
    written = budget()
    written["metadata"] |= {"generation": 2, "resourceVersion": "2"}
    written["spec"] |= change
    paper.change(TOPOLOGY_DISRUPTION_BUDGETS, msgspec.convert(written, TopologyDisruptionBudget))
    await paper.scale_down._reconcile(WEB)
    assert paper.server.tried == revoked
    assert not paper.scale_down._progress
