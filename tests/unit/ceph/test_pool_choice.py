"""Where a volume goes: a table of named cases, and what holds for every class and request."""

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
Said = tuple[str, Segments, str]


def storage_class(*rules: PoolRule, **more: object) -> StorageClassParameters:
    return StorageClassParameters(VolumeKind.RBD, "one", pool="journal", rules=rules, **more)  # type: ignore[arg-type]


def states(**free: int) -> dict[str, PoolState]:
    return {name: PoolState(name, size * GIB) for name, size in free.items()}


def asked(*preferred: Segments, requisite: tuple[Segments, ...] = ()) -> TopologyRequirement:
    return TopologyRequirement(requisite or preferred, preferred)


CASES: dict[str, tuple[StorageClassParameters, TopologyRequirement, float, Said]] = {
    "the first preferred": (storage_class(*ZONAL), asked(B, A), 0.0, ("pb", B, "PreferredDomain")),
    "the node's rack lies in a zone": (
        storage_class(*ZONAL),
        asked((("region", "west"), ("zone", "b"), ("rack", "r1"))),
        0.0,
        ("pb", B, "PreferredDomain"),
    ),
    "a region's pool serves its zones": (
        storage_class(*MIXED),
        asked((("region", "west"), ("zone", "b"))),
        0.0,
        ("west", WEST, "PreferredDomain"),
    ),
    "the narrowest wins": (
        storage_class(*MIXED),
        asked((("region", "west"), ("zone", "a"))),
        0.0,
        ("a", A, "PreferredDomain"),
    ),
    "a pool for everywhere comes last": (storage_class(*MIXED), asked(EAST), 0.9, ("all", (), "PreferredDomain")),
    "a wide wish takes a pool inside it": (
        storage_class(PoolRule("p", segments=(*WEST, *A))),
        asked(WEST),
        0.0,
        ("p", (*WEST, *A), "PreferredDomain"),
    ),
    "nothing asked, by chance": (storage_class(*ZONAL), TopologyRequirement(), 0.5, ("pb", (), "AnyDomain")),
    "nothing asked, one pool": (storage_class(PoolRule("p")), TopologyRequirement(), 0.5, ("p", (), "OnlyPool")),
    "no preference, some required": (
        storage_class(*ZONAL),
        TopologyRequirement(requisite=(A, C)),
        0.9,
        ("pc", (), "AnyDomain"),
    ),
    "immediate, whatever is preferred": (
        storage_class(*ZONAL, is_immediate=True),
        asked(A, B, C),
        0.99,
        ("pc", (), "AnyDomain"),
    ),
    "a domain without a pool": (
        storage_class(*ZONAL),
        asked((("zone", "new"),), requisite=((("zone", "new"),), B)),
        0.9,
        ("pb", (), "UnknownDomain"),
    ),
    "only domains without a pool": (storage_class(*ZONAL), asked((("zone", "new"),)), 0.0, ("pa", (), "UnknownDomain")),
    "a node without domains": (storage_class(*ZONAL), asked(()), 0.0, ("pa", (), "AnyDomain")),
}


@pytest.mark.parametrize(("wanted", "requirement", "draw", "said"), CASES.values(), ids=CASES)
def test_choice(wanted: StorageClassParameters, requirement: TopologyRequirement, draw: float, said: Said) -> None:
    chosen = pool_choice.choose(wanted, requirement, {}, GIB, draw)
    assert (chosen.rule.pool, chosen.domain, chosen.reason.code) == said
    assert chosen.rule.pool in chosen.reason.sentence


def test_pools_that_can_not_take_it_are_left_out_and_named() -> None:
    known = {
        "pa": PoolState("pa", GIB, is_serving=False, problem="0 of its 1 OSDs are up, and 1 are needed"),
        "pb": PoolState("pb", 9 * GIB, is_full=True, problem="its quota is used up"),
        "pc": PoolState("pc", GIB),
    }
    wanted = storage_class(*ZONAL, overcommit=2.0)
    assert pool_choice.choose(wanted, TopologyRequirement(), known, GIB, 0.0).rule.pool == "pc"
    with pytest.raises(CsiError) as refused:
        pool_choice.choose(wanted, TopologyRequirement(), known, 3 * GIB, 0.0)
    assert refused.value.code is GrpcCode.RESOURCE_EXHAUSTED
    for word in ("pa is not serving (0 of its 1 OSDs", "pb is full (its quota", "pc has 1073741824 bytes free"):
        assert word in str(refused.value)
    with pytest.raises(CsiError, match="no pool of domain zone=a"):
        pool_choice.choose(wanted, asked(A, C), known, GIB, 0.0)  # a pod waits there, so that no other domain will do


@pytest.mark.parametrize(
    ("balance", "share"),
    [(PoolBalance.RANDOM, (1, 1, 1)), (PoolBalance.SPACE, (1, 2, 5)), (PoolBalance.COUNT, (4, 2, 1))],
)
def test_chances(balance: PoolBalance, share: tuple[int, int, int]) -> None:
    known = {
        "pa": PoolState("pa", 1 * GIB, volumes=0),
        "pb": PoolState("pb", 2 * GIB, volumes=1),
        "pc": PoolState("pc", 5 * GIB, volumes=3),
    }
    wanted = storage_class(*ZONAL, balance=balance)
    draws = [(number + 0.5) / 840 for number in range(840)]
    seen = Counter(pool_choice.choose(wanted, TopologyRequirement(), known, 1, draw).rule.pool for draw in draws)
    assert [seen[name] for name in ("pa", "pb", "pc")] == [840 * part // sum(share) for part in share]


def test_copies_stay_with_their_source_unless_the_class_says_otherwise() -> None:
    wanted = storage_class(*ZONAL)
    chosen = pool_choice.choose_for_copy(wanted, asked(B, requisite=(A, B)), PoolRule("pa", segments=A))
    assert chosen is not None
    assert (chosen.rule.pool, chosen.domain, chosen.reason.code) == ("pa", A, "SourceDomain")
    with pytest.raises(CsiError, match="cloneDomain: requested"):
        pool_choice.choose_for_copy(wanted, asked(B), PoolRule("pa", segments=A))
    everywhere = pool_choice.choose_for_copy(wanted, asked(B), PoolRule("pa"))
    assert everywhere is not None
    assert everywhere.domain == ()
    assert (
        pool_choice.choose_for_copy(
            storage_class(*ZONAL, clone_domain=CloneDomain.REQUESTED), asked(B), PoolRule("pa", segments=A)
        )
        is None
    )


def test_capacity() -> None:
    wanted = storage_class(*ZONAL, overcommit=3.0)
    known = states(pa=1, pb=2, pc=4)
    assert pool_choice.capacity(wanted, A, known) == (GIB, 3 * GIB)
    assert pool_choice.capacity(wanted, (), known) == (7 * GIB, 12 * GIB)
    assert pool_choice.capacity(wanted, (("zone", "new"),), known) == (7 * GIB, 12 * GIB)
    assert pool_choice.capacity(storage_class(*ZONAL, overcommit=0.0), B, known) == (2 * GIB, 0)
    dead = known | {"pa": PoolState("pa", 9 * GIB, is_serving=False)}
    assert pool_choice.capacity(wanted, A, dead) == (0, 0)


def test_where_data_goes_to_another_pool_that_one_counts_too() -> None:
    rule = PoolRule("pa", "ec", A)
    wanted = storage_class(rule, PoolRule("pb", "ec", B), overcommit=2.0)
    known = {**states(pa=1, pb=1, ec=4)}
    assert pool_choice.needed(wanted.rules) == {"pa", "pb", "ec"}
    assert pool_choice.choose(wanted, asked(A), known, 8 * GIB, 0.0).rule == rule
    assert pool_choice.capacity(wanted, (), known) == (4 * GIB, 8 * GIB)  # once, though two pools have their data there
    full = known | {"ec": PoolState("ec", 4 * GIB, is_full=True, problem="its quota is used up")}
    with pytest.raises(CsiError, match=r"pa is full \(its data pool ec: its quota is used up\)"):
        pool_choice.choose(wanted, asked(A), full, GIB, 0.0)
    down = known | {"pa": PoolState("pa", GIB, is_serving=False, problem="0 of its 1 OSDs are up")}
    with pytest.raises(CsiError, match=r"pa is not serving \(0 of its 1 OSDs are up\)"):
        pool_choice.choose(wanted, asked(A), down, GIB, 0.0)


segments = st.dictionaries(st.sampled_from(["region", "zone", "rack"]), st.sampled_from("ab"), max_size=3).map(
    lambda found: tuple(found.items())
)
rules = st.lists(st.builds(PoolRule, st.sampled_from(["p0", "p1", "p2", "p3"]), st.just(""), segments), min_size=1)
requirements = st.builds(
    TopologyRequirement, st.lists(segments, max_size=3).map(tuple), st.lists(segments, max_size=3).map(tuple)
)


@given(rules, requirements, st.floats(0, 1, exclude_max=True))
def test_there_is_always_a_pool_of_the_class_and_an_honest_domain(
    listed: list[PoolRule], requirement: TopologyRequirement, draw: float
) -> None:
    chosen = pool_choice.choose(storage_class(*listed), requirement, {}, GIB, draw)
    assert chosen.rule in listed
    assert chosen.domain in {(), chosen.rule.segments}
    if chosen.domain:  # then the pod's node is in it, or it lies where the pod may go
        first = set(requirement.preferred[0])
        assert set(chosen.domain) <= first or first <= set(chosen.domain)


@given(rules, requirements, st.floats(0, 1, exclude_max=True))
def test_a_retry_with_the_same_request_would_accept_what_was_chosen(
    listed: list[PoolRule], requirement: TopologyRequirement, draw: float
) -> None:
    whole = TopologyRequirement((*requirement.requisite, *requirement.preferred), requirement.preferred)
    chosen = pool_choice.choose(storage_class(*listed), whole, {}, GIB, draw)
    assert pool_choice.reachable(chosen.domain, whole)
