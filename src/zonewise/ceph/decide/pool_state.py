"""What the monitors' answers mean for each pool: free space, whether enough OSDs are up, whether it is full. Pure.

Free space alone misleads: a pool whose zone is dead still shows all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.ceph.decide.model import PoolState

_FULL_FLAGS = frozenset({"full", "full_quota"})


def read(df: Any, dump: Any, tree: Any, rules: Any) -> dict[str, PoolState]:
    """From `df`, `osd dump`, `osd tree` and `osd crush rule dump`, all as JSON."""
    free = {pool["name"]: int(pool["stats"]["max_avail"]) for pool in df.get("pools", [])}
    up = {osd["osd"] for osd in dump["osds"] if osd["up"] and osd["in"]}
    members = _members(tree, rules)
    return {pool["pool_name"]: _state(pool, free, up, members.get(pool["crush_rule"])) for pool in dump["pools"]}


def _state(pool: Any, free: Mapping[str, int], up: set[int], members: frozenset[int] | None) -> PoolState:
    """`members` are the OSDs that its rule may choose; None where they can't be told, and then it is believed to serve."""
    name = pool["pool_name"]
    alive = len((members or frozenset()) & up)
    needed = max(1, int(pool["min_size"]))
    is_serving = members is None or alive >= needed
    full = _FULL_FLAGS & set(pool.get("flags_names", "").split(","))
    is_full = bool(full) or free.get(name) == 0
    problem = ""
    if not is_serving:
        problem = f"{alive} of its {len(members or ())} OSDs are up, and {needed} are needed"
    elif is_full:
        problem = "its quota is used up" if "full_quota" in full else "no space is left"
    return PoolState(name, free.get(name, 0), is_serving=is_serving, is_full=is_full, problem=problem)


def _members(tree: Any, rules: Any) -> dict[int, frozenset[int] | None]:
    """By rule. One for a class of devices takes a shadow of the bucket (`zone-a~ssd`), which the tree does not show."""
    below = _osds_below(tree)
    numbers = {node["name"]: node["id"] for node in tree["nodes"]}
    classes = {node["id"]: node["device_class"] for node in tree["nodes"] if "device_class" in node}

    def chosen(step: Any) -> frozenset[int] | None:
        name, _, wanted = step["item_name"].partition("~")
        found = below.get(numbers.get(name, step["item"]))
        if found is None or not wanted or not classes:
            return found
        return frozenset(osd for osd in found if classes.get(osd) == wanted)

    members: dict[int, frozenset[int] | None] = {}
    for rule in rules:
        taken = [chosen(step) for step in rule["steps"] if step["op"] == "take"]
        known = [each for each in taken if each is not None]
        members[rule["rule_id"]] = frozenset[int]().union(*known) if known else None
    return members


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
