"""What the monitors' answers mean for each pool: free space, whether enough OSDs are up, whether it is full. Pure.

Free space alone misleads: a pool whose zone is dead still shows all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.ceph.model import PoolState

_FULL_FLAGS = frozenset({"full", "full_quota"})


def read(df: Any, dump: Any, tree: Any, rules: Any) -> dict[str, PoolState]:
    """From `df`, `osd dump`, `osd tree` and `osd crush rule dump`, all as JSON."""
    free = {pool["name"]: int(pool["stats"]["max_avail"]) for pool in df.get("pools", [])}
    up = {osd["osd"] for osd in dump["osds"] if osd["up"] and osd["in"]}
    below = _osds_below(tree)
    roots = {rule["rule_id"]: [step["item"] for step in rule["steps"] if step["op"] == "take"] for rule in rules}
    return {
        pool["pool_name"]: _state(pool, free, up, below, roots.get(pool["crush_rule"], [])) for pool in dump["pools"]
    }


def _state(
    pool: Any, free: Mapping[str, int], up: set[int], below: Mapping[int, frozenset[int]], roots: list[int]
) -> PoolState:
    name = pool["pool_name"]
    members = frozenset[int]().union(*(below.get(root, frozenset()) for root in roots))
    alive = len(members & up)
    needed = max(1, int(pool["min_size"]))
    is_serving = not members or alive >= needed
    full = _FULL_FLAGS & set(pool.get("flags_names", "").split(","))
    is_full = bool(full) or free.get(name) == 0
    problem = ""
    if not is_serving:
        problem = f"{alive} of its {len(members)} OSDs are up, and {needed} are needed"
    elif is_full:
        problem = "its quota is used up" if "full_quota" in full else "no space is left"
    return PoolState(name, free.get(name, 0), is_serving=is_serving, is_full=is_full, problem=problem)


def _osds_below(tree: Any) -> dict[int, frozenset[int]]:
    nodes = {node["id"]: node for node in tree["nodes"]}
    known: dict[int, frozenset[int]] = {}

    def osds(number: int) -> frozenset[int]:
        if number not in known:
            children = nodes.get(number, {}).get("children", [])
            known[number] = (
                frozenset({number}) if number >= 0 else frozenset[int]().union(*(osds(child) for child in children))
            )
        return known[number]

    for number in nodes:
        osds(number)
    return known
