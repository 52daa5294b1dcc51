"""A budget without a term gives the numbers of the stock PodDisruptionBudget: facts of its controller, and its formula.

Two of our own rules go further: a limit that freezes does so even with pods to spare, and a workload that was scaled to
nothing may be emptied.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import NAKED, NEW, OLD, Cluster, budget, pod
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.pods import ControllerRef, Owner, PodFacts, PodStage, Workload

OTHER = ControllerRef("ReplicationController", "rc", "rc")
CUSTOM = ControllerRef("Custom", "thing", "custom")


def cluster(wants: dict[str, int], *pods: PodFacts) -> Cluster:
    """`wants`: desired pods by controller uid, each its own owner."""
    workloads = {uid: Workload(Owner("Any", uid, uid), desired) for uid, desired in wants.items()}
    return Cluster({member.name: member for member in pods}, workloads)


def pods_of(controller: ControllerRef | None, ready: int, unready: int = 0) -> list[PodFacts]:
    name = controller.uid if controller else "naked"
    return [pod(f"{name}-{number}", "node-a", controller, ready=number < ready) for number in range(ready + unready)]


MIN_3, MAX_1, MAX_2, MAX_5 = (
    budget(minAvailable=3),
    budget(maxUnavailable=1),
    budget(maxUnavailable=2),
    budget(maxUnavailable=5),
)
MIN_1, MIN_1_PERCENT, MIN_20, MIN_28, MIN_34, MAX_30 = (
    budget(minAvailable=1),
    budget(minAvailable="1%"),
    budget(minAvailable="20%"),
    budget(minAvailable="28%"),
    budget(minAvailable="34%"),
    budget(maxUnavailable="30%"),
)
FACTS: dict[str, tuple[Cluster, Budget, tuple[int, int, int, int]]] = {
    "a number for naked pods": (cluster({}, *pods_of(NAKED, 4)), MIN_3, (1, 4, 3, 4)),
    "the same, one not ready": (cluster({}, *pods_of(NAKED, 3, 1)), MIN_3, (0, 3, 3, 4)),
    "maxUnavailable needs a controller": (cluster({}, *pods_of(NAKED, 1)), MAX_1, (0, 1, 0, 0)),
    "most pods are yet to come": (cluster({"rs-old": 7}, *pods_of(OLD, 1)), MAX_2, (0, 1, 5, 7)),
    "after scaling": (cluster({"rs-old": 5}, *pods_of(OLD, 1)), MAX_2, (0, 1, 3, 5)),
    "a percentage of the scale, rounded up": (cluster({"rs-old": 7}, *pods_of(OLD, 1)), MAX_30, (0, 1, 4, 7)),
    "a percentage after scaling": (cluster({"rs-old": 3}, *pods_of(OLD, 1)), MAX_30, (0, 1, 2, 3)),
    "a percentage needs a controller": (cluster({}, *pods_of(NAKED, 1)), MIN_28, (0, 1, 0, 0)),
    "a ReplicaSet without Deployment": (cluster({"rs-old": 10}, *pods_of(OLD, 1)), MIN_20, (0, 1, 2, 10)),
    "any scale": (cluster({"custom": 10}, *pods_of(CUSTOM, 4)), MAX_5, (0, 4, 5, 10)),
    "more pods than wanted": (cluster({"rc": 1}, *pods_of(OTHER, 2)), MIN_1_PERCENT, (1, 2, 1, 1)),
    "34 % of 3": (cluster({"rc": 3}, *pods_of(OTHER, 3)), MIN_34, (1, 3, 2, 3)),
    "34 % of 3, and a rogue pod": (cluster({"rc": 3}, *pods_of(OTHER, 3), *pods_of(NAKED, 1)), MIN_34, (2, 4, 2, 3)),
    "two controllers": (
        cluster({"rc": 11, "rs-new": 11}, *pods_of(OTHER, 5, 6), *pods_of(NEW, 4, 7)),
        MIN_28,
        (2, 9, 7, 22),
    ),
    "a controller without a scale beside another": (
        cluster({"rs-old": 3}, *pods_of(OLD, 3), *pods_of(CUSTOM, 3)),
        MAX_1,
        (0, 6, 2, 3),
    ),
    "a number needs no scale": (cluster({}, *pods_of(CUSTOM, 4)), MIN_3, (1, 4, 3, 4)),
    "nothing to count": (cluster({}), MIN_28, (0, 0, 0, 0)),
}


@pytest.mark.parametrize(("counted", "limited", "expected"), FACTS.values(), ids=FACTS)
def test_numbers_equal_those_of_the_stock_controller(
    counted: Cluster, limited: Budget, expected: tuple[int, int, int, int]
) -> None:
    numbers = counted.pod_count(limited).numbers
    assert (numbers.allowed, numbers.healthy, numbers.desired, numbers.tally.expected) == expected


def test_charged_and_leaving_pods_are_not_healthy() -> None:
    """As with the stock controller's list of disrupted pods."""
    counted = cluster({}, pod("a1", terminating=True), pod("a2"), pod("a3")).charged("a3")
    numbers = counted.pod_count(MIN_1).numbers
    assert (numbers.allowed, numbers.healthy, numbers.desired, numbers.tally.expected) == (0, 1, 1, 3)


def stock(limited: Budget, wants: dict[str, int], pods: list[PodFacts], charged: set[str]) -> int:
    """The stock controller's formula, reimplemented from its rules."""
    alive = [member for member in pods if member.stage is not PodStage.ENDED]
    healthy = sum(member.ready and not member.terminating and member.name not in charged for member in alive)
    fixed = limited.minimum is not None and not limited.minimum.percent
    if not fixed and any(member.controller == CUSTOM and not member.terminating for member in alive):
        return 0  # the sync fails
    counted_pods = {member.controller_uid for member in alive if member.controller_uid in wants}
    expected = sum(wants[uid] for uid in counted_pods)
    if limited.maximum is not None:
        most = math.ceil(expected * limited.maximum.number / 100) if limited.maximum.percent else limited.maximum.number
        desired = max(0, expected - most)
    else:
        assert limited.minimum is not None
        if limited.minimum.percent:
            desired = math.ceil(expected * limited.minimum.number / 100)
        else:
            desired, expected = limited.minimum.number, len(alive)
    return max(0, healthy - desired) if expected > 0 else 0


@st.composite
def pods_anywhere(draw: st.DrawFn) -> list[PodFacts]:
    state = st.sampled_from([{}, {"ready": False}, {"terminating": True}, {"stage": PodStage.ENDED, "ready": False}])
    controllers = st.sampled_from([OLD, OTHER, CUSTOM, NAKED])
    zones = st.sampled_from(["node-a", "node-b", "node-bare"])
    drawn = draw(st.lists(st.tuples(zones, controllers, state), max_size=30))
    return [pod(f"p{number}", node, owner, **facts) for number, (node, owner, facts) in enumerate(drawn)]


@given(
    pods=pods_anywhere(),
    wants=st.fixed_dictionaries({uid: st.integers(1, 15) for uid in ("rs-old", "rc")}),
    limit=st.one_of(
        st.tuples(st.sampled_from(["minAvailable", "maxUnavailable"]), st.integers(1, 20)),
        st.tuples(st.sampled_from(["minAvailable", "maxUnavailable"]), st.integers(1, 99).map(lambda n: f"{n}%")),
    ),
    chosen=st.sets(st.integers(0, 29)),
)
def test_the_stock_formula(
    pods: list[PodFacts], wants: dict[str, int], limit: tuple[str, int | str], chosen: set[int]
) -> None:
    limited = budget(**{limit[0]: limit[1]})
    charged = {member.name for index, member in enumerate(pods) if index in chosen and member.active}
    counted = cluster(wants, *pods).charged(*sorted(charged))
    assert counted.pod_count(limited).numbers.allowed == stock(limited, wants, pods, charged)
