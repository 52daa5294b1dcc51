"""Which pods a shrinking ReplicaSet is let delete, so that the zones are even when it is done."""

from collections import Counter

import pytest

from unit.disruption.paper import BUDGET, Paper
from zonewise.disruption.sources import WorkloadKey
from zonewise.objects import Key

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
