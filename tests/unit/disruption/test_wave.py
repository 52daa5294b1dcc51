"""Waves over domains: as wide as all budgets allow, never wider, and a rollout always ends."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import ACROSS, BY_ZONE, EXISTS, OVERALL, budget, pod
from unit.disruption.simulated_rollout import SimulatedRollout
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.wave import WaveLimits

TWO_ACROSS = budget(EXISTS, name="two-across", maxUnavailable=2)
HALF = budget(EXISTS, name="half", maxUnavailable="50%")
ONE_ZONE = budget(EXISTS, name="one-zone", maxUnavailable="100%", maxDisruptedDomains=1)
KEEP_TWO = budget(EXISTS, name="keep-two", minAvailable=2)


def names(rollout: SimulatedRollout) -> list[str]:
    return [pick.candidate.pod.name for pick in rollout.plan().picks]


@pytest.mark.parametrize(
    ("shape", "budgets", "wave"),
    [
        pytest.param("3/3/3", [ACROSS], "a0 b0 c0", id="one in each zone"),
        pytest.param("3/3/3", [OVERALL], "a0", id="one of all"),
        pytest.param("3/3/3", [ACROSS, OVERALL], "a0", id="all budgets must allow it"),
        pytest.param("3/3/3", [TWO_ACROSS], "a0 a1 b0 b1 c0 c1", id="two in each zone"),
        pytest.param("3/3/3", [HALF], "a0 a1 b0 b1 c0 c1", id="half, rounded up"),
        pytest.param("5/3/1", [ACROSS], "a0 b0 c0", id="an uneven spread"),
        pytest.param("4/3/2", [KEEP_TWO], "a0 a1 b0", id="what is left over a minimum"),
        pytest.param("3/3/3", [ONE_ZONE], "a0 a1 a2", id="one zone at a time"),
        pytest.param("3/3/3", [BY_ZONE], "a0", id="zone a is not covered: one at a time, as stock"),
        pytest.param("3/3/3", [BY_ZONE, ACROSS], "a0", id="the others are frozen"),
        pytest.param("3/3/3", [], "a0", id="no budget: one at a time, as stock"),
    ],
)
def test_the_first_wave(shape: str, budgets: list[Budget], wave: str) -> None:
    assert names(SimulatedRollout.of(shape, *budgets)) == wave.split()


@pytest.mark.parametrize(
    ("shape", "limit", "most"),
    [
        ("3/3/3", ACROSS, 3),
        ("33/33/33", ACROSS, 33),
        ("5/3/1", ACROSS, 5),
        ("4/3/2", TWO_ACROSS, 2),
        ("3/3/3", OVERALL, 9),
        ("3/3/3", ONE_ZONE, 3),
        ("4/4/4", HALF, 2),
    ],
)
def test_rollout_takes_the_fewest_waves(shape: str, limit: Budget, most: int) -> None:
    rollout = SimulatedRollout.of(shape, limit)
    waves = 0
    while not rollout.finished:
        assert rollout.go().picks
        rollout.settle()
        waves += 1
    assert waves == most
    assert Counter(rollout.evicted) == dict.fromkeys(rollout.pods, 1)


def test_held_pods_have_reasons() -> None:
    rollout = SimulatedRollout.of("2/2/2", BY_ZONE)
    reasons = {held.candidate.pod.name: held.reasons[0].code for held in rollout.plan().held}
    assert reasons == {"a1": "OneAtATime", **dict.fromkeys(("b0", "b1", "c0", "c1"), "Frozen")}


def test_unready_pods_go_first_and_cost_nothing() -> None:
    rollout = SimulatedRollout.of("3/3/3", ACROSS)
    rollout.pods["b2"] = msgspec.structs.replace(rollout.pods["b2"], ready=False)
    wave = rollout.plan()
    assert [pick.candidate.pod.name for pick in wave.picks] == ["b2", "a0", "c0"]
    assert not wave.picks[0].charge.charges


def test_rollback_of_a_bad_revision() -> None:
    """What never becomes ready is replaced first, though its zone has nothing to spare."""
    rollout = SimulatedRollout.of("3/3/3", ACROSS)
    rollout.go()
    for name in ("a0", "b0", "c0"):
        rollout.replace(name)
    assert names(rollout) == []
    rollout.pods = {
        name: msgspec.structs.replace(known, labels={"controller-revision-hash": "old" if not known.ready else "new"})
        for name, known in rollout.pods.items()
    }
    assert names(rollout) == ["a0", "b0", "c0"]


def test_charged_pods_are_not_charged_again() -> None:
    """The leader that planned the wave crashed before it evicted: the next one continues."""
    rollout = SimulatedRollout.of("3/3/3", ACROSS)
    rollout.reserve(rollout.plan())
    wave = rollout.plan()
    assert [pick.candidate.pod.name for pick in wave.picks] == ["a0", "b0", "c0"]
    assert not wave.charges


def test_closed_domains_are_skipped_and_probed_ones_tried_once() -> None:
    rollout = SimulatedRollout.of("3/3/3", TWO_ACROSS)
    wave = rollout.plan(WaveLimits(closed=lambda domain: domain == "a", single=lambda domain: domain == "b"))
    assert [pick.candidate.pod.name for pick in wave.picks] == ["b0", "c0", "c1"]


def test_pods_on_nodes_outside_the_term_go_one_at_a_time() -> None:
    rollout = SimulatedRollout.of("2/2/2", ACROSS)
    bare = {
        name: pod(name, "node-bare", rollout.pods["a0"].controller, labels=rollout.pods["a0"].labels) for name in "xy"
    }
    rollout.pods |= bare
    rollout.desired += 2
    assert names(rollout) == ["a0", "b0", "c0", "x"]


SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any).map(lambda counts: "/".join(map(str, counts)))
LIMITS = st.lists(st.sampled_from([ACROSS, OVERALL, TWO_ACROSS, HALF, ONE_ZONE]), min_size=1, max_size=3, unique_by=id)


def unkept(rollout: SimulatedRollout, sizes: Counter[str]) -> str:
    """What is wrong now, counted from scratch."""
    away = rollout.away()
    for limit in rollout.budgets:
        most = {name: limit.maximum.of(size) if limit.maximum else 0 for name, size in sizes.items()}
        if limit is OVERALL and away.total() > 1:
            return f"{away} are away where one may be"
        if limit is ONE_ZONE and len(+away) > 1:
            return f"{away}: two zones are disrupted"
        if limit is not OVERALL and any(away[name] > most[name] for name in away):
            return f"{away} where {limit.limit} of {sizes}"
    return ""


@given(SHAPES, LIMITS, st.integers())
def test_rollout_never_exceeds_the_budget_and_ends(shape: str, limits: list[Budget], seed: int) -> None:
    """Waves are planned whenever, pods leave and come back in any order; each goes exactly once."""
    rollout, chance = SimulatedRollout.of(shape, *limits), random.Random(seed)
    sizes = Counter(name[0] for name in rollout.pods)
    for _ in range(20 * len(rollout.pods)):
        if rollout.finished:
            break
        moving = [name for name, known in rollout.pods.items() if known.terminating or not known.ready]
        choice = chance.choice(["plan", *moving])
        if choice == "plan" or not moving:
            rollout.go()
        elif rollout.pods[choice].terminating:
            rollout.replace(choice)
        else:
            rollout.make_ready(choice)
        rollout.count()
        assert not (problem := unkept(rollout, sizes)), problem
    while not rollout.finished:
        rollout.settle()
        rollout.go()
        assert not (problem := unkept(rollout, sizes)), problem
    assert Counter(rollout.evicted) == dict.fromkeys(rollout.pods, 1)
