"""Documented examples: the answers of budgets in 49 situations, and the numbers of stock PDBs.

Three zones and nine replicas, three in each, unless a line says otherwise. BY_ZONE freezes all zones but a, ACROSS
allows one per zone, OVERALL one of all.
"""

from dataclasses import dataclass

import msgspec
import pytest

from unit.disruption.build import (
    ACROSS,
    BY_ZONE,
    EXISTS,
    NAKED,
    NEW,
    NOT_A,
    OVERALL,
    STATEFUL,
    Cluster,
    budget,
    pod,
    spread,
    workloads,
)
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.verdict import EvictionVerdict
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.topology import ZONE

ALLOW, CHARGE, DENY = EvictionVerdict.ALLOW, EvictionVerdict.CHARGE, EvictionVerdict.DENY

IN_A_OR_B = {"key": ZONE, "operator": "In", "values": ["a", "b"]}
NOT_A_ANYWHERE = budget(NOT_A, maxUnavailable=0)
HALF = budget(EXISTS, maxUnavailable="50%")
TWO_EACH = budget(EXISTS, minAvailable=2)
ONE_ZONE_AT_A_TIME = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)
POOL = budget(IN_A_OR_B, maxUnavailable=1)
SPLIT = budget(IN_A_OR_B, EXISTS, maxUnavailable=1)
ALWAYS = budget(EXISTS, maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
NOWHERE = Budget.parse(
    msgspec.convert(
        {"metadata": {"name": "nowhere"}, "spec": {"selector": {}, "nodeSelectorTerm": {}, "maxUnavailable": 0}},
        TopologyDisruptionBudget,
    )
)

EVEN = spread("3/3/3")
SHRINKING = EVEN.scaled(6)
WITH_UNLABELLED_NODE = EVEN.with_pods(pod("x0", "node-bare")).scaled(10)
LOST_AND_WAITING = EVEN.gone("b0").pending("n0")
LANDED_IN_C = EVEN.gone("b0").with_pods(pod("n0", "node-c", ready=False))
ZONE_A_ALL_NEW = Cluster(
    {name: pod(name, controller=NEW) for name in ("a0", "a1", "a2", "a3")}
    | {name: pod(name) for name in ("b0", "b1", "b2", "c0", "c1", "c2")},
    workloads(9),
)
SURGE_IN_A = EVEN.with_pods(pod("a9", controller=NEW))


@dataclass(frozen=True)
class Example:
    number: int
    what: str
    cluster: Cluster
    pod: str
    budgets: tuple[Budget, ...]
    verdict: EvictionVerdict
    code: DisruptionCode | None = None


def _(
    number: int,
    what: str,
    cluster: Cluster,
    pod: str,
    budgets: Budget | tuple[Budget, ...],
    verdict: EvictionVerdict,
    code: DisruptionCode | None = None,
) -> Example:
    return Example(number, what, cluster, pod, budgets if isinstance(budgets, tuple) else (budgets,), verdict, code)


EXAMPLES = [
    _(1, "zone a is not covered", EVEN, "a0", BY_ZONE, ALLOW, DisruptionCode.NOT_COVERED),
    _(2, "frozen", EVEN, "b0", BY_ZONE, DENY, DisruptionCode.FROZEN),
    _(
        3,
        "Exists leaves out a node without the label",
        WITH_UNLABELLED_NODE,
        "x0",
        BY_ZONE,
        ALLOW,
        DisruptionCode.NOT_COVERED,
    ),
    _(
        4,
        "NotIn alone covers a node without the label",
        WITH_UNLABELLED_NODE,
        "x0",
        NOT_A_ANYWHERE,
        DENY,
        DisruptionCode.FROZEN,
    ),
    _(5, "one of three may go", EVEN, "b1", ACROSS, CHARGE, DisruptionCode.WITHIN_BUDGET),
    _(6, "another of its zone is charged", EVEN.charged("b0"), "b1", ACROSS, DENY, DisruptionCode.TOO_FEW_HEALTHY),
    _(7, "zones are independent", EVEN.charged("b0"), "c1", ACROSS, CHARGE),
    _(8, "another of its zone terminates", EVEN.terminating("b0"), "b1", ACROSS, DENY),
    _(9, "the replacement is pending: the gap stays in b", LOST_AND_WAITING, "b1", ACROSS, DENY),
    _(10, "the gap of b is not c's", LOST_AND_WAITING, "c1", ACROSS, CHARGE),
    _(11, "the replacement landed in c: b has two of two", LANDED_IN_C, "b1", ACROSS, CHARGE),
    _(12, "and c has three of four", LANDED_IN_C, "c1", ACROSS, DENY),
    _(13, "pending, of unknown origin: counts everywhere", EVEN.lost("b0").pending("n0"), "a0", ACROSS, DENY),
    _(14, "five in a: still one at a time", spread("5/3/1").charged("a0"), "a1", ACROSS, DENY),
    _(15, "one in c: it may go", spread("5/3/1").charged("a0"), "c0", ACROSS, CHARGE),
    _(16, "ten over three zones", spread("4/3/3"), "b0", ACROSS, CHARGE),
    _(17, "half of three, rounded up: the second", EVEN.charged("a0"), "a1", HALF, CHARGE),
    _(18, "half of three, rounded up: the third", EVEN.charged("a0", "a1"), "a2", HALF, DENY),
    _(19, "two are needed in c and there are two", spread("4/3/2"), "c0", TWO_EACH, DENY),
    _(20, "two are needed in a and there are four", spread("4/3/2"), "a0", TWO_EACH, CHARGE),
    _(21, "one of all", EVEN, "c0", OVERALL, CHARGE),
    _(22, "another one of all", EVEN.charged("a0"), "c0", OVERALL, DENY),
    _(23, "all budgets must allow", EVEN.charged("a0"), "c0", (ACROSS, OVERALL), DENY),
    _(24, "only one of two covers it", EVEN, "a1", (BY_ZONE, ACROSS), CHARGE),
    _(25, "nine to six: a has one too many", SHRINKING, "a0", ACROSS, CHARGE),
    _(26, "a has given its share", spread("2/3/3", 6), "a0", ACROSS, DENY, DisruptionCode.KEEPS_SPREAD),
    _(27, "c has not", spread("2/3/3", 6), "c0", ACROSS, CHARGE),
    _(28, "a freeze beats surplus", SHRINKING, "b0", BY_ZONE, DENY, DisruptionCode.FROZEN),
    _(29, "nine to six, as stock: the fourth", SHRINKING.charged("a0", "b0", "c0"), "a1", OVERALL, CHARGE),
    _(30, "nine to six, as stock: the fifth", SHRINKING.charged("a0", "b0", "c0", "a1"), "a2", OVERALL, DENY),
    _(31, "unready, and the rest is enough", EVEN.unready("b0"), "b0", ACROSS, ALLOW, DisruptionCode.NOT_READY),
    _(32, "unready, and the rest is not enough", EVEN.unready("b0", "b1"), "b0", ACROSS, DENY),
    _(33, "unready ones may always go", EVEN.unready("b0", "b1"), "b0", ALWAYS, ALLOW, DisruptionCode.NOT_READY),
    _(34, "one zone at a time: more of the same", EVEN.charged("a0"), "a1", ONE_ZONE_AT_A_TIME, CHARGE),
    _(
        35,
        "one zone at a time: another",
        EVEN.charged("a0"),
        "b0",
        ONE_ZONE_AT_A_TIME,
        DENY,
        DisruptionCode.OTHER_DOMAINS_DISRUPTED,
    ),
    _(36, "two zones as one pool", EVEN.charged("a0"), "b0", POOL, DENY),
    _(37, "two zones, each for itself", EVEN.charged("a0"), "b0", SPLIT, CHARGE),
    _(38, "asked again", EVEN.charged("b0"), "b0", ACROSS, ALLOW, DisruptionCode.ALREADY_CHARGED),
    _(39, "pending pods may go", EVEN.pending("n0").scaled(10), "n0", BY_ZONE, ALLOW, DisruptionCode.NOT_RUNNING),
    _(40, "an empty term covers nothing", EVEN, "b0", NOWHERE, ALLOW, DisruptionCode.NOT_COVERED),
    _(41, "its zone's surplus is used up by a charge", SHRINKING.charged("a0"), "a1", ACROSS, DENY),
    _(42, "large zones give first: not c", spread("5/3/1", 6), "c0", ACROSS, DENY, DisruptionCode.KEEPS_SPREAD),
    _(43, "large zones give first: a", spread("5/3/1", 6), "a0", ACROSS, CHARGE),
    _(44, "the scale-down is over", spread("2/2/2"), "a0", ACROSS, CHARGE),
    _(
        45,
        "balance before minimum",
        spread("4/4/4", 9).charged("b0"),
        "b1",
        TWO_EACH,
        DENY,
        DisruptionCode.KEEPS_SPREAD,
    ),
    _(46, "no better old pod: the rollout continues", ZONE_A_ALL_NEW, "b0", ACROSS, CHARGE),
    _(47, "the surge is in a: not b", SURGE_IN_A, "b0", ACROSS, DENY, DisruptionCode.KEEPS_SPREAD),
    _(48, "the surge is in a: its old ones go", SURGE_IN_A, "a0", ACROSS, CHARGE),
    _(49, "a StatefulSet's order is fixed", spread("2/3/3", 6, STATEFUL), "a0", ACROSS, CHARGE),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.number}: {example.what}")
def test_worked_examples(example: Example) -> None:
    judged = example.cluster.judge(example.pod, *example.budgets)
    assert judged.verdict is example.verdict, [str(verdict.reason) for verdict in judged.verdicts]
    if example.code is not None:
        assert example.code in {verdict.reason.code for verdict in judged.verdicts}


def test_every_documented_example_is_tested() -> None:
    assert [example.number for example in EXAMPLES] == list(range(1, 50))


def naked(count: int) -> Cluster:
    return spread(f"{count}", controller=NAKED)


TWO_WORKLOADS = spread("2/2/2", 6).with_pods(*(pod(f"a{number}", controller=STATEFUL) for number in range(4, 10)))

STOCK = {
    "maxUnavailable of all wanted": (EVEN, {"maxUnavailable": 1}, 1),
    "a percentage of all wanted rounds up": (EVEN, {"maxUnavailable": "25%"}, 3),
    "one percent of one is one": (spread("1"), {"maxUnavailable": "1%"}, 1),
    "half of nine must stay: five": (EVEN, {"minAvailable": "50%"}, 4),
    "a whole minimum": (EVEN, {"minAvailable": 7}, 2),
    "a minimum above what there is": (EVEN, {"minAvailable": 12}, 0),
    "all must stay": (EVEN, {"minAvailable": "100%"}, 0),
    "none may go": (EVEN, {"maxUnavailable": 0}, 0),
    "all may go": (EVEN, {"maxUnavailable": "100%"}, 9),
    "unready ones are not healthy": (EVEN.unready("a0", "b0"), {"maxUnavailable": 3}, 1),
    "terminating ones are not healthy": (EVEN.terminating("a0", "b0"), {"maxUnavailable": 3}, 1),
    "what is missing counts": (EVEN.scaled(10), {"maxUnavailable": 2}, 1),
    "surplus may go": (SHRINKING, {"maxUnavailable": 1}, 4),
    "a whole minimum needs no controller": (naked(3), {"minAvailable": 2}, 1),
    "unmanaged pods have no desired number": (naked(3), {"maxUnavailable": 1}, 0),
    "wanted numbers of several controllers add up": (TWO_WORKLOADS, {"maxUnavailable": "25%"}, 3),
}


@pytest.mark.parametrize(("cluster", "spec", "allowed"), STOCK.values(), ids=STOCK.keys())
def test_budget_without_a_term_has_the_numbers_of_a_stock_pdb(
    cluster: Cluster, spec: dict[str, int | str], allowed: int
) -> None:
    assert sum(cluster.allowed(budget(**spec)).values()) == allowed
