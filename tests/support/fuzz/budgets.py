"""TopologyDisruptionBudgets as stored: each is read, or refused with every problem; limits stay within the target."""

from __future__ import annotations

import json

import msgspec

from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.objects.policy import TopologyDisruptionBudget

LABELS = {"app": "web", "topology.kubernetes.io/zone": "zone-a", "failure-domain.beta.kubernetes.io/zone": "zone-b"}
SPEC = {
    "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
    "nodeSelectorTerm": {
        "matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["zone-c"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
    },
    "domainKeys": ["topology.kubernetes.io/zone"],
    "maxUnavailable": 1,
    "maxDisruptedDomains": 1,
    "unhealthyPodEvictionPolicy": "AlwaysAllow",
    "enforcement": "Enforce",
    "applyTo": ["Evictions", "Deletes", "ControllerDeletes"],
}  # fmt: skip
SEEDS = [
    json.dumps({"metadata": {"name": "b", "namespace": "n", "uid": "u"}, "spec": spec}).encode()
    for spec in (
        SPEC,
        {**SPEC, "maxUnavailable": None, "minAvailable": "50%"},
        {"selector": {}, "maxUnavailable": "0%"},
    )
]
WORDS = (
    *SPEC, "minAvailable", "matchLabels", "matchExpressions", "matchFields", "key", "operator", "values", "In", "NotIn", "Exists", "DoesNotExist",
    "Gt", "Lt", "metadata.name", "IfHealthyBudget", "AlwaysAllow", "Off", "Observe", "Evictions", "Deletes", "100%", "33%", "kubernetes.io/hostname", "zone-a",
)  # fmt: skip


def budget_in(data: bytes) -> tuple[TopologyDisruptionBudget, Budget] | None:
    """None for what the decoder or the reader refuses."""
    try:
        stored = msgspec.json.decode(data, type=TopologyDisruptionBudget)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        return stored, Budget.parse(stored)
    except BudgetError as error:
        assert str(error)
        return None


def check(data: bytes) -> None:
    if (found := budget_in(data)) is None:
        return
    _, budget = found
    assert budget.limit
    assert isinstance(budget.frozen, bool)
    budget.selects(LABELS)
    budget.domain_key(LABELS, "n1")
    for target in (0, 1, 3, 1000):
        assert budget.desired(target) >= 0
        assert not budget.frozen or budget.desired(target) == target
