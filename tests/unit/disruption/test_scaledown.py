"""Grants of a shrinking ReplicaSet keep the zones even, and are revoked when not needed."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from unit.disruption.fake_leader import BUDGET, FakeLeader, budget, replica_pod
from zonewise.api.names import GRANTED
from zonewise.disruption.watch.informers import WorkloadKey
from zonewise.objects import PODS, Key, Pod
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS, TopologyDisruptionBudget

WEB = WorkloadKey("ReplicaSet", Key("shop", "web"))
FOUR_EACH = [f"{zone}{number}" for zone in "abc" for number in range(4)]


@pytest.mark.parametrize("unready", [(), ("a0",), ("b2",), ("a1", "c3"), ("a0", "b0", "c0")], ids=str)
async def test_pods_that_go_anyway_lower_their_domain(unready: tuple[str, ...]) -> None:
    """Its controller takes pods that are not ready first, and unasked: granted are those that make it even with them."""
    leader = FakeLeader("abc", lambda: 1000.0)
    leader.shrink(9, *FOUR_EACH, unready=unready)
    await leader.status_writer._reconcile(BUDGET)
    await leader.scale_down._reconcile(WEB)
    left = Counter(name[0] for name in FOUR_EACH if name not in {*unready, *leader.server.tried})
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
async def test_grants_are_revoked_when_not_needed(change: dict[str, Any], revoked: list[str]) -> None:
    """Who is granted counts as about to leave, and stays charged: for ever, if its controller need not ask any more."""
    leader = FakeLeader("abc", lambda: 1000.0)
    leader.shrink(1, "a0", "b0")
    granted = replica_pod("a0", version=2)
    granted["metadata"]["annotations"] = {GRANTED: "uid-a0"}
    leader.change(PODS, msgspec.convert(granted, Pod))
    body = budget()
    body["metadata"] |= {"generation": 2, "resourceVersion": "2"}
    body["spec"] |= change
    leader.change(TOPOLOGY_DISRUPTION_BUDGETS, msgspec.convert(body, TopologyDisruptionBudget))
    await leader.scale_down._reconcile(WEB)
    assert leader.server.tried == revoked
    assert not leader.scale_down._progress
