"""Pool states from the monitors' replies: free space, whether enough OSDs are up, whether the pool is full. Pure.

Free space alone is misleading: a pool of a failed zone still reports all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from zonewise.ceph.decide.model import PoolState

_FULL_FLAGS: Final = frozenset({"full", "full_quota"})


def pool_states(df: Any, dump: Any, tree: Any, rules: Any) -> dict[str, PoolState]:
    """By pool, from the JSON of `df`, `osd dump`, `osd tree` and `osd crush rule dump`."""
    free = {pool["name"]: int(pool["stats"]["max_avail"]) for pool in df.get("pools", [])}
    up = {osd["osd"] for osd in dump["osds"] if osd["up"] and osd["in"]}
    members = _members(tree, rules)
    return {pool["pool_name"]: _state(pool, free, up, members.get(pool["crush_rule"])) for pool in dump["pools"]}


def _state(pool: Any, free: Mapping[str, int], up: set[int], members: frozenset[int] | None) -> PoolState:
    """`members` are the OSDs of its CRUSH rule; if they are unknown (None), the pool is assumed to serve."""
    name = pool["pool_name"]
    alive = len((members or frozenset()) & up)
    needed = max(1, int(pool["min_size"]))
    is_serving = members is None or alive >= needed
    full = _FULL_FLAGS & set(pool.get("flags_names", "").split(","))
    is_full = bool(full) or free.get(name) == 0
    problem = ""
    if not is_serving:
        problem = f"{alive} of its {len(members or ())} OSDs are up, {needed} are needed"
    elif is_full:
        problem = "its quota is used up" if "full_quota" in full else "no space is left"
    return PoolState(name, free.get(name, 0), is_serving=is_serving, is_full=is_full, problem=problem)


def _members(tree: Any, rules: Any) -> dict[int, frozenset[int] | None]:
    """OSDs by rule. A rule for a device class takes a shadow bucket (`zone-a~ssd`), which the tree does not show."""
    osds_by_bucket = _osds_below(tree)
    bucket_ids = {node["name"]: node["id"] for node in tree["nodes"]}
    classes = {node["id"]: node["device_class"] for node in tree["nodes"] if "device_class" in node}

    def osds_of_step(step: Any) -> frozenset[int] | None:
        name, _, device_class = step["item_name"].partition("~")
        osds = osds_by_bucket.get(bucket_ids.get(name, step["item"]))
        if osds is None or not device_class or not classes:
            return osds
        return frozenset(osd for osd in osds if classes.get(osd) == device_class)

    members: dict[int, frozenset[int] | None] = {}
    for rule in rules:
        taken = [osds_of_step(step) for step in rule["steps"] if step["op"] == "take"]
        known_sets = [osds for osds in taken if osds is not None]
        members[rule["rule_id"]] = frozenset[int]().union(*known_sets) if known_sets else None
    return members


def _osds_below(tree: Any) -> dict[int, frozenset[int]]:
    nodes = {node["id"]: node for node in tree["nodes"]}
    result: dict[int, frozenset[int]] = {}

    def osds(node_id: int) -> frozenset[int]:
        if node_id not in result:
            children = nodes.get(node_id, {}).get("children", [])
            result[node_id] = (
                frozenset({node_id}) if node_id >= 0 else frozenset[int]().union(*(osds(child) for child in children))
            )
        return result[node_id]

    for node_id in nodes:
        osds(node_id)
    return result
