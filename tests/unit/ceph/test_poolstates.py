"""What the monitors' answers mean: free space alone says nothing about a zone that is dead."""

from typing import Any

from zonewise.ceph import poolstates
from zonewise.ceph.model import PoolState

TREE = {
    "nodes": [
        {"id": -1, "children": [-2, -3]},
        {"id": -2, "children": [0]},
        {"id": -3, "children": [1, 2]},
        {"id": 0},
        {"id": 1},
        {"id": 2},
    ]
}
RULES = [
    {"rule_id": 0, "steps": [{"op": "take", "item": -1}, {"op": "emit"}]},
    {"rule_id": 1, "steps": [{"op": "take", "item": -2}, {"op": "emit"}]},
    {"rule_id": 2, "steps": [{"op": "take", "item": -3}, {"op": "emit"}]},
]


def read(*up: int, free: dict[str, int] | None = None, **flags: str) -> dict[str, PoolState]:
    pools: list[Any] = [
        {"pool_name": name, "crush_rule": rule, "min_size": least, "flags_names": flags.get(name, "hashpspool")}
        for name, rule, least in (("all", 0, 2), ("a", 1, 1), ("b", 2, 2))
    ]
    dump = {"pools": pools, "osds": [{"osd": number, "up": number in up, "in": 1} for number in range(3)]}
    space = {"all": 5, "a": 5, "b": 5} | (free or {})
    df = {"pools": [{"name": name, "stats": {"max_avail": size}} for name, size in space.items()]}
    return poolstates.read(df, dump, TREE, RULES)


def test_all_is_well() -> None:
    assert all(state.is_serving and not state.is_full and state.free_bytes == 5 for state in read(0, 1, 2).values())


def test_a_pool_serves_while_as_many_of_its_osds_are_up_as_it_needs() -> None:
    known = read(1, 2)
    assert [known[name].is_serving for name in ("all", "a", "b")] == [True, False, True]
    assert known["a"].problem == "0 of its 1 OSDs are up, and 1 are needed"
    assert known["a"].free_bytes == 5
    known = read(0, 1)
    assert [known[name].is_serving for name in ("all", "a", "b")] == [True, True, False]


def test_full_by_quota_or_for_want_of_space() -> None:
    known = read(0, 1, 2, free={"b": 0}, a="hashpspool,full,full_quota")
    assert [known[name].is_full for name in ("all", "a", "b")] == [False, True, True]
    assert (known["a"].problem, known["b"].problem) == ("its quota is used up", "no space is left")
