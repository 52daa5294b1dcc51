"""Table and JSON of answering zones by client zone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from zonewise.lab.decide import addresses
from zonewise.lab.demo import zone_answers
from zonewise.lab.demo.shop import UNANSWERED
from zonewise.lab.demo.zone_answers import FrontPod


def test_rows_are_client_zones_and_columns_server_zones() -> None:
    counts = {"zone-a": Counter({"zone-a": 3, "zone-b": 1}), "zone-b": Counter({"zone-b": 8})}
    assert zone_answers.complete(counts)
    assert zone_answers.table(counts, ["zone-a", "zone-b"]).splitlines() == [
        "asked from      zone-a      zone-b  same zone",
        "zone-a            75 %        25 %       75 %",
        "zone-b             0 %       100 %      100 %",
    ]


def test_json_has_the_counts() -> None:
    counts = {"a": Counter({"a": 3, "b": 1}), "b": Counter({UNANSWERED: 2})}
    assert list(msgspec.to_builtins(zone_answers.account(counts, ["a", "b"]))) == [
        {"zone": "a", "answers": {"a": 3, "b": 1}, "unanswered": 0, "sameZone": 0.75},
        {"zone": "b", "answers": {"a": 0, "b": 0}, "unanswered": 2, "sameZone": 0.0},
    ]


def test_unanswered_requests_have_their_own_column() -> None:
    counts = {"a": Counter({"a": 1, UNANSWERED: 1}), "b": Counter[str]()}
    assert not zone_answers.complete(counts)
    assert zone_answers.table(counts, ["a", "b"]).splitlines() == [
        "asked from           a           b  unanswered  same zone",
        "a                 50 %         0 %        50 %       50 %",
        "b                  0 %         0 %         0 %        0 %",
    ]


def front(node: str, phase: str = "Running") -> dict[str, Any]:
    return {"spec": {"nodeName": node}, "status": {"phase": phase, "podIP": f"10.0.0.{node[-1]}"}}


def test_fronts_in_containers_are_those_that_run_on_a_node_of_the_lab() -> None:
    plan = addresses.plan("lab", 0, ("zone-a", "zone-b"), 1)
    plans = {node.name: node for node in plan.nodes}
    pods = [
        front("zone-a-1"),
        front("zone-b-1", "Pending"),
        front("zone-b-1"),
        front("kwok-1"),
        {"spec": {}, "status": {}},
    ]
    assert zone_answers.fronts_on(plans, pods) == [
        FrontPod(node.zone, node.namespace, "10.0.0.1") for node in plan.nodes
    ]
