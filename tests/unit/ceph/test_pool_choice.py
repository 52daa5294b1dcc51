"""Pool choice: a table of named cases, and properties of every class and request."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.ceph.decide import pool_choice
from zonewise.ceph.decide.domains import Segments
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.decide.model import PoolState, TopologyRequirement
from zonewise.ceph.decide.parameters import CloneDomain, PoolBalance, PoolRule, StorageClassParameters

GIB = 1 << 30
A, B, C = ((("zone", zone),) for zone in "abc")
WEST, EAST = ((("region", region),) for region in ("west", "east"))
ZONAL = (PoolRule("pa", segments=A), PoolRule("pb", segments=B), PoolRule("pc", segments=C))
MIXED = (PoolRule("west", segments=WEST), PoolRule("a", segments=A), PoolRule("all"))
Expected = tuple[str, Segments, str]


def storage_class(*rules: PoolRule, **more: object) -> StorageClassParameters:
    return StorageClassParameters(VolumeKind.RBD, "one", pool="journal", rules=rules, **more)  # type: ignore[arg-type]


def states(**free: int) -> dict[str, PoolState]:
    return {name: PoolState(name, size * GIB) for name, size in free.items()}


def prefer(*preferred: Segments, requisite: tuple[Segments, ...] = ()) -> TopologyRequirement:
    return TopologyRequirement(requisite or preferred, preferred)


CASES: dict[str, tuple[StorageClassParameters, TopologyRequirement, float, Expected]] = {
    "first preferred domain": (storage_class(*ZONAL), prefer(B, A), 0.0, ("pb", B, "PreferredDomain")),
    "rack within a zone": (
        storage_class(*ZONAL),
        prefer((("region", "west"), ("zone", "b"), ("rack", "r1"))),
        0.0,
        ("pb", B, "PreferredDomain"),
    ),
    "pool of a region serves its zones": (
        storage_class(*MIXED),
        prefer((("region", "west"), ("zone", "b"))),
        0.0,
        ("west", WEST, "PreferredDomain"),
    ),
    "narrowest domain wins": (
        storage_class(*MIXED),
        prefer((("region", "west"), ("zone", "a"))),
        0.0,
        ("a", A, "PreferredDomain"),
    ),
    "pool without a domain comes last": (storage_class(*MIXED), prefer(EAST), 0.9, ("all", (), "PreferredDomain")),
    "wide preference, narrower pool": (
        storage_class(PoolRule("p", segments=(*WEST, *A))),
        prefer(WEST),
        0.0,
        ("p", (*WEST, *A), "PreferredDomain"),
    ),
    "no requirement, random": (storage_class(*ZONAL), TopologyRequirement(), 0.5, ("pb", (), "AnyDomain")),
    "no requirement, one pool": (storage_class(PoolRule("p")), TopologyRequirement(), 0.5, ("p", (), "OnlyPool")),
    "requisite without preference": (
        storage_class(*ZONAL),
        TopologyRequirement(requisite=(A, C)),
        0.9,
        ("pc", (), "AnyDomain"),
    ),
    "immediate binding ignores preference": (
        storage_class(*ZONAL, is_immediate=True),
        prefer(A, B, C),
        0.99,
        ("pc", (), "AnyDomain"),
    ),
    "preferred domain without a pool": (
        storage_class(*ZONAL),
        prefer((("zone", "new"),), requisite=((("zone", "new"),), B)),
        0.9,
        ("pb", (), "UnknownDomain"),
    ),
    "only domains without a pool": (
        storage_class(*ZONAL),
        prefer((("zone", "new"),)),
        0.0,
        ("pa", (), "UnknownDomain"),
    ),
    "node without domains": (storage_class(*ZONAL), prefer(()), 0.0, ("pa", (), "AnyDomain")),
}


@pytest.mark.parametrize(("storage", "requirement", "draw", "expected"), CASES.values(), ids=CASES)
def test_chosen_pool_domain_and_reason(
    storage: StorageClassParameters, requirement: TopologyRequirement, draw: float, expected: Expected
) -> None:
    chosen = pool_choice.choose(storage, requirement, {}, GIB, draw)
    assert (chosen.rule.pool, chosen.domain, chosen.reason.code) == expected
    assert chosen.rule.pool in chosen.reason.sentence


def test_unusable_pools_are_skipped_and_named_in_the_error() -> None:
    pool_states = {
        "pa": PoolState("pa", GIB, is_serving=False, problem="0 of its 1 OSDs are up, 1 are needed"),
        "pb": PoolState("pb", 9 * GIB, is_full=True, problem="its quota is used up"),
        "pc": PoolState("pc", GIB),
    }
    storage = storage_class(*ZONAL, overcommit=2.0)
    assert pool_choice.choose(storage, TopologyRequirement(), pool_states, GIB, 0.0).rule.pool == "pc"
    with pytest.raises(CsiError) as error:
        pool_choice.choose(storage, TopologyRequirement(), pool_states, 3 * GIB, 0.0)
    assert error.value.code is GrpcCode.RESOURCE_EXHAUSTED
    for word in ("pa is not serving (0 of its 1 OSDs", "pb is full (its quota", "pc has 1073741824 bytes free"):
        assert word in str(error.value)
    with pytest.raises(CsiError, match="no pool of domain zone=a"):
        pool_choice.choose(storage, prefer(A, C), pool_states, GIB, 0.0)  # a pod waits there: no other domain is tried


@pytest.mark.parametrize(
    ("balance", "share"),
    [(PoolBalance.RANDOM, (1, 1, 1)), (PoolBalance.SPACE, (1, 2, 5)), (PoolBalance.COUNT, (4, 2, 1))],
)
def test_balance_weights(balance: PoolBalance, share: tuple[int, int, int]) -> None:
    pool_states = {
        "pa": PoolState("pa", 1 * GIB, volumes=0),
        "pb": PoolState("pb", 2 * GIB, volumes=1),
        "pc": PoolState("pc", 5 * GIB, volumes=3),
    }
    storage = storage_class(*ZONAL, balance=balance)
    draws = [(number + 0.5) / 840 for number in range(840)]
    counts = Counter(
        pool_choice.choose(storage, TopologyRequirement(), pool_states, 1, draw).rule.pool for draw in draws
    )
    assert [counts[name] for name in ("pa", "pb", "pc")] == [840 * part // sum(share) for part in share]


def test_copies_stay_in_the_pool_of_their_source() -> None:
    storage = storage_class(*ZONAL)
    chosen = pool_choice.choose_for_copy(storage, prefer(B, requisite=(A, B)), PoolRule("pa", segments=A))
    assert chosen is not None
    assert (chosen.rule.pool, chosen.domain, chosen.reason.code) == ("pa", A, "SourceDomain")
    with pytest.raises(CsiError, match="cloneDomain: requested"):
        pool_choice.choose_for_copy(storage, prefer(B), PoolRule("pa", segments=A))
    everywhere = pool_choice.choose_for_copy(storage, prefer(B), PoolRule("pa"))
    assert everywhere is not None
    assert everywhere.domain == ()
    assert (
        pool_choice.choose_for_copy(
            storage_class(*ZONAL, clone_domain=CloneDomain.REQUESTED), prefer(B), PoolRule("pa", segments=A)
        )
        is None
    )


def test_capacity() -> None:
    storage = storage_class(*ZONAL, overcommit=3.0)
    pool_states = states(pa=1, pb=2, pc=4)
    assert pool_choice.capacity(storage, A, pool_states) == (GIB, 3 * GIB)
    assert pool_choice.capacity(storage, (), pool_states) == (7 * GIB, 12 * GIB)
    assert pool_choice.capacity(storage, (("zone", "new"),), pool_states) == (7 * GIB, 12 * GIB)
    assert pool_choice.capacity(storage_class(*ZONAL, overcommit=0.0), B, pool_states) == (2 * GIB, 0)
    dead = pool_states | {"pa": PoolState("pa", 9 * GIB, is_serving=False)}
    assert pool_choice.capacity(storage, A, dead) == (0, 0)


def test_data_pool_counts_for_state_and_capacity() -> None:
    rule = PoolRule("pa", "ec", A)
    storage = storage_class(rule, PoolRule("pb", "ec", B), overcommit=2.0)
    pool_states = {**states(pa=1, pb=1, ec=4)}
    assert pool_choice.pools_of(storage.rules) == {"pa", "pb", "ec"}
    assert pool_choice.choose(storage, prefer(A), pool_states, 8 * GIB, 0.0).rule == rule
    assert pool_choice.capacity(storage, (), pool_states) == (4 * GIB, 8 * GIB)  # the shared data pool counts once
    full = pool_states | {"ec": PoolState("ec", 4 * GIB, is_full=True, problem="its quota is used up")}
    with pytest.raises(CsiError, match=r"pa is full \(its data pool ec: its quota is used up\)"):
        pool_choice.choose(storage, prefer(A), full, GIB, 0.0)
    down = pool_states | {"pa": PoolState("pa", GIB, is_serving=False, problem="0 of its 1 OSDs are up")}
    with pytest.raises(CsiError, match=r"pa is not serving \(0 of its 1 OSDs are up\)"):
        pool_choice.choose(storage, prefer(A), down, GIB, 0.0)


segments = st.dictionaries(st.sampled_from(["region", "zone", "rack"]), st.sampled_from("ab"), max_size=3).map(
    lambda labels: tuple(labels.items())
)
rules = st.lists(st.builds(PoolRule, st.sampled_from(["p0", "p1", "p2", "p3"]), st.just(""), segments), min_size=1)
requirements = st.builds(
    TopologyRequirement, st.lists(segments, max_size=3).map(tuple), st.lists(segments, max_size=3).map(tuple)
)


@given(rules, requirements, st.floats(0, 1, exclude_max=True))
def test_choice_is_a_pool_of_the_class_with_a_matching_domain(
    listed: list[PoolRule], requirement: TopologyRequirement, draw: float
) -> None:
    chosen = pool_choice.choose(storage_class(*listed), requirement, {}, GIB, draw)
    assert chosen.rule in listed
    assert chosen.domain in {(), chosen.rule.segments}
    if chosen.domain:  # it contains the preferred domain, or is within it
        first = set(requirement.preferred[0])
        assert set(chosen.domain) <= first or first <= set(chosen.domain)


@given(rules, requirements, st.floats(0, 1, exclude_max=True))
def test_retry_of_a_request_accepts_the_chosen_pool(
    listed: list[PoolRule], requirement: TopologyRequirement, draw: float
) -> None:
    whole = TopologyRequirement((*requirement.requisite, *requirement.preferred), requirement.preferred)
    chosen = pool_choice.choose(storage_class(*listed), whole, {}, GIB, draw)
    assert pool_choice.satisfies(chosen.domain, whole)
