"""Pool states from the monitors' replies: free space says nothing about a failed zone."""

from typing import Any

import pytest

from zonewise.ceph.decide import pool_state
from zonewise.ceph.decide.model import PoolState

TREE: dict[str, list[dict[str, Any]]] = {
    "nodes": [
        {"id": -1, "name": "default", "children": [-2, -3]},
        {"id": -2, "name": "zone-a", "children": [0]},
        {"id": -3, "name": "zone-b", "children": [1, 2, 3]},
        {"id": 0, "name": "osd.0", "device_class": "ssd"},
        {"id": 1, "name": "osd.1", "device_class": "ssd"},
        {"id": 2, "name": "osd.2", "device_class": "hdd"},
        {"id": 3, "name": "osd.3"},
    ]
}


def take(number: int, name: str) -> list[Any]:
    return [{"op": "take", "item": number, "item_name": name}, {"op": "emit"}]


RULES = [
    {"rule_id": 0, "steps": take(-1, "default")},
    {"rule_id": 1, "steps": take(-2, "zone-a")},
    {"rule_id": 2, "steps": take(-3, "zone-b")},
    {"rule_id": 3, "steps": take(-13, "zone-b~ssd")},
    {"rule_id": 4, "steps": take(-14, "zone-b~nvme")},
    {"rule_id": 5, "steps": [*take(-12, "zone-a~ssd"), *take(-13, "zone-b~ssd")]},
    {"rule_id": 6, "steps": take(-99, "elsewhere")},
]
POOLS = (("all", 0, 2), ("a", 1, 1), ("b", 2, 2))


def read(
    *up: int, free: dict[str, int] | None = None, tree: Any = TREE, specs: Any = POOLS, **flags: str
) -> dict[str, PoolState]:
    pools: list[Any] = [
        {"pool_name": name, "crush_rule": rule, "min_size": min_size, "flags_names": flags.get(name, "hashpspool")}
        for name, rule, min_size in specs
    ]
    dump = {"pools": pools, "osds": [{"osd": number, "up": number in up, "in": 1} for number in range(4)]}
    space = {"all": 5, "a": 5, "b": 5} | (free or {})
    df = {"pools": [{"name": name, "stats": {"max_avail": size}} for name, size in space.items()]}
    return pool_state.pool_states(df, dump, tree, RULES)


def test_healthy_pools_serve() -> None:
    assert all(state.is_serving and not state.is_full and state.free_bytes == 5 for state in read(0, 1, 2).values())


def test_pool_serves_with_min_size_osds_up() -> None:
    states = read(1, 2)
    assert [states[name].is_serving for name in ("all", "a", "b")] == [True, False, True]
    assert states["a"].problem == "0 of its 1 OSDs are up, 1 are needed"
    assert states["a"].free_bytes == 5
    states = read(0, 1)
    assert [states[name].is_serving for name in ("all", "a", "b")] == [True, True, False]


def test_full_by_quota_or_without_free_space() -> None:
    states = read(0, 1, 2, free={"b": 0}, a="hashpspool,full,full_quota")
    assert [states[name].is_full for name in ("all", "a", "b")] == [False, True, True]
    assert (states["a"].problem, states["b"].problem) == ("its quota is used up", "no space is left")


@pytest.mark.parametrize(
    ("rule", "min_size", "up", "problem"),
    [
        pytest.param(3, 1, {0, 1, 2}, "", id="its only device is up"),
        pytest.param(
            3, 1, {0, 2, 3}, "0 of its 1 OSDs are up, 1 are needed", id="only devices of other classes are up"
        ),
        pytest.param(4, 1, {0, 1, 2}, "0 of its 0 OSDs are up, 1 are needed", id="no device of its class"),
        pytest.param(5, 2, {0, 1}, "", id="two zones are up"),
        pytest.param(5, 2, {0, 2}, "1 of its 2 OSDs are up, 2 are needed", id="one of two zones is down"),
        pytest.param(6, 1, set(), "", id="unknown root"),
        pytest.param(7, 1, set(), "", id="unknown rule"),
    ],
)
def test_rule_of_a_device_class_counts_its_osds(rule: int, min_size: int, up: set[int], problem: str) -> None:
    (state,) = read(*up, specs=[("all", rule, min_size)]).values()
    assert (state.is_serving, state.problem) == (not problem, problem)


def test_tree_without_device_classes_counts_all_osds() -> None:
    plain = {"nodes": [{key: value for key, value in node.items() if key != "device_class"} for node in TREE["nodes"]]}
    assert [read(up, tree=plain, specs=[("all", 3, 1)])["all"].is_serving for up in (0, 2)] == [False, True]
