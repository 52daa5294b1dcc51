"""Parsing of budget specs: amounts, domains, old labels and problems."""

from typing import Any

import msgspec
import pytest

from unit.disruption.build import ACROSS, BY_ZONE, EXISTS, NOT_A, OVERALL, budget
from zonewise.disruption.decide.budget import (
    Amount,
    Budget,
    BudgetDomainKey,
    BudgetError,
    DisruptionKind,
    Enforcement,
    UnhealthyPolicy,
)
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.topology import REGION, ZONE

BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
RACK = {"key": "example.com/rack", "operator": "Exists"}


@pytest.mark.parametrize(
    ("value", "whole", "amount"),
    [(0, 9, 0), (1, 9, 1), (12, 9, 12), ("0%", 9, 0), ("1%", 1, 1), ("34%", 3, 2), ("50%", 3, 2), ("100%", 7, 7)],
)
def test_amounts_round_up_like_stock_pdbs(value: int | str, whole: int, amount: int) -> None:
    parsed = Amount.parse(value)
    assert parsed.of(whole) == amount
    assert str(parsed) == str(value)


@pytest.mark.parametrize("value", ["1", "", "%", "-1%", "101%", "1.5%", "x", -1, "1 %", True, "\u0661%"])
def test_invalid_amounts_are_rejected(value: int | str) -> None:
    with pytest.raises(ValueError, match="write"):
        Amount.parse(value)


def parse(spec: dict[str, Any]) -> Budget:
    metadata = {"name": "web", "namespace": "shop"}
    return Budget.parse(msgspec.convert({"metadata": metadata, "spec": spec}, TopologyDisruptionBudget))


DOMAINS: dict[str, tuple[Budget, dict[str, str], BudgetDomainKey]] = {
    "no term": (OVERALL, {}, BudgetDomainKey("all", covered=True)),
    "split by zone": (ACROSS, {ZONE: "b"}, BudgetDomainKey("b", covered=True)),
    "split by zone, old label on the node": (ACROSS, {BETA_ZONE: "b"}, BudgetDomainKey("b", covered=True)),
    "split by zone, both labels on the node": (ACROSS, {ZONE: "b", BETA_ZONE: "x"}, BudgetDomainKey("b", covered=True)),
    "no zone": (ACROSS, {"x": "y"}, BudgetDomainKey("", covered=False)),
    "an empty zone is none": (ACROSS, {ZONE: ""}, BudgetDomainKey("", covered=False)),
    "one zone left out": (BY_ZONE, {ZONE: "a"}, BudgetDomainKey("a", covered=False)),
    "one zone left out, old label on the node": (BY_ZONE, {BETA_ZONE: "a"}, BudgetDomainKey("a", covered=False)),
    "one zone left out, in another": (BY_ZONE, {ZONE: "b"}, BudgetDomainKey("b", covered=True)),
    "NotIn holds without the label, and makes one pool": (
        budget(NOT_A, maxUnavailable=1),
        {},
        BudgetDomainKey("pool", covered=True),
    ),
    "old label in the term, new on the node": (
        budget({"key": BETA_ZONE, "operator": "Exists"}, maxUnavailable=1),
        {ZONE: "b"},
        BudgetDomainKey("b", covered=True),
    ),
    "both spellings are one key": (
        budget(EXISTS, {"key": BETA_ZONE, "operator": "Exists"}, maxUnavailable=1),
        {ZONE: "b"},
        BudgetDomainKey("b", covered=True),
    ),
    "two keys": (
        budget(EXISTS, RACK, maxUnavailable=1),
        {ZONE: "b", RACK["key"]: "r1"},
        BudgetDomainKey("b/r1", covered=True),
    ),
    "two keys, one missing": (budget(EXISTS, RACK, maxUnavailable=1), {ZONE: "b"}, BudgetDomainKey("", covered=False)),
    "keys of its own": (
        budget(EXISTS, maxUnavailable=1, domainKeys=[REGION]),
        {ZONE: "b", REGION: "eu"},
        BudgetDomainKey("eu", covered=True),
    ),
    "keys without a term": (
        budget(maxUnavailable=1, domainKeys=[ZONE]),
        {ZONE: "b"},
        BudgetDomainKey("b", covered=True),
    ),
    "keys without a term, missing": (
        budget(maxUnavailable=1, domainKeys=[ZONE]),
        {},
        BudgetDomainKey("", covered=False),
    ),
    "an empty term covers nothing": (
        parse({"selector": {}, "maxUnavailable": 0, "nodeSelectorTerm": {}}),
        {ZONE: "b"},
        BudgetDomainKey("pool", covered=False),
    ),
}


@pytest.mark.parametrize(("limited", "labels", "domain_key"), DOMAINS.values(), ids=DOMAINS)
def test_domain_of_a_node(limited: Budget, labels: dict[str, str], domain_key: BudgetDomainKey) -> None:
    assert limited.domain_key(labels, "node-1") == domain_key


def test_term_can_match_a_node_by_name() -> None:
    one = parse(
        {
            "selector": {},
            "maxUnavailable": 1,
            "nodeSelectorTerm": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
        }
    )
    assert [one.domain_key({}, name).covered for name in ("node-1", "node-2")] == [True, False]


def test_defaults() -> None:
    read = parse({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": "50%"})
    assert (read.enforcement, read.unhealthy) == (Enforcement.ENFORCE, UnhealthyPolicy.IF_HEALTHY_BUDGET)
    assert read.apply_to == {DisruptionKind.EVICTIONS, DisruptionKind.CONTROLLER_DELETES}
    assert (read.whole, read.frozen, read.limit) == (True, False, "minAvailable 50%")
    assert (read.selects({"app": "web", "x": "y"}), read.selects({"app": "db"})) == (True, False)


@pytest.mark.parametrize(
    ("limit", "frozen"),
    [
        ({"maxUnavailable": 0}, True),
        ({"maxUnavailable": "0%"}, True),
        ({"minAvailable": "100%"}, True),
        ({"minAvailable": 100}, False),
        ({"minAvailable": "0%"}, False),
        ({"maxUnavailable": "1%"}, False),
    ],
)
def test_limits_that_freeze(limit: dict[str, Any], *, frozen: bool) -> None:
    assert budget(**limit).frozen is frozen


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(BudgetError) as refused:
        parse(
            {
                "selector": {"matchLabels": {"-": "x"}},
                "minAvailable": "x",
                "maxUnavailable": 1,
                "maxDisruptedDomains": 0,
                "enforcement": "Maybe",
                "applyTo": ["Drains"],
                "domainKeys": ["a/b/c"],
                "nodeSelectorTerm": {"matchExpressions": [{"key": ZONE, "operator": "In"}]},
            }
        )
    problems = str(refused.value)
    assert problems.startswith("TopologyDisruptionBudget shop/web: ")
    for part in ("minAvailable", "exactly one", "maxDisruptedDomains", "selector", "Enforce, DryRun, Off", "Evictions"):
        assert part in problems
    assert len(refused.value.problems) >= 8


def test_budget_without_selector_selects_nothing() -> None:
    assert not parse({"maxUnavailable": 1}).selects({"app": "web"})
