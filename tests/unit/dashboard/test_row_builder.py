"""Rows of nodes, Services, budgets, rollouts and drains, built from a dump."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from support.dashboard.cluster import HOSTILE, SAME_ZONE, cluster, hostile_cluster, node, service, slice_of
from zonewise.dashboard import from_dump
from zonewise.dashboard.decide import row_builder
from zonewise.dashboard.decide.row_builder import Workload
from zonewise.dashboard.decide.rows import NodeRow, ServiceRow
from zonewise.dashboard.decide.whatif_api import ScaleService, WhatIfQuestion, answer_question
from zonewise.dashboard.live_state import LiveState
from zonewise.dashboard.simulation import PLOTS, simulate_cluster
from zonewise.diagnostics.decide.status.report import ServiceState
from zonewise.objects.apps import DaemonSet, Deployment, StatefulSet
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import HintsForm


def publish(objects: list[dict[str, object]]) -> tuple[LiveState, Snapshot]:
    state = LiveState({})
    data = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
    return state, from_dump.publish_dump(from_dump.read_dump(data, "test"), state, HintsForm.STABLE)


def test_a_dump_fills_every_table() -> None:
    homes = [("a-1", "a"), ("b-1", "b")]
    state, snapshot = publish(
        [
            *(node(name, zone) for name, zone in homes),
            service("cart", "shop", {SAME_ZONE: "Prefer", "zonewise.dev/drain-zone": "a"}),
            slice_of("cart", "shop", homes),
        ]
    )
    assert state.tables["nodes"]["a-1"] == NodeRow(zone="a", region="eu-1", endpoints=1)
    row = state.tables["services"]["shop/cart"]
    assert isinstance(row, ServiceRow)
    assert (row.policy, row.endpoints, row.our_proxy) == ("same-zone Prefer", 1, False)
    assert list(state.tables["drains"]) == ["a"]
    assert {"budgets", "rollouts", "volumes", "takeovers", "notices"} <= state.tables.keys()
    table = simulate_cluster(snapshot)
    assert table.inputs == 1
    assert all("<svg" in draw(table.rows) for draw in PLOTS.values())


@pytest.mark.parametrize("all_services", [False, True])
def test_a_proxy_for_all_services_has_no_losses(all_services: bool) -> None:
    homes = [("a-1", "a"), ("b-1", "b")]
    proxy = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "zonewise-proxy", "labels": {"app.kubernetes.io/name": "zonewise-proxy"}},
        "spec": {"template": {"spec": {"containers": [{"args": ["proxy", *["--all-services"] * all_services]}]}}},
    }
    cart = service("cart", "shop", {SAME_ZONE: "Require"})
    state, snapshot = publish([*(node(*home) for home in homes), cart, slice_of("cart", "shop", homes), proxy])
    row = state.tables["services"]["shop/cart"]
    assert isinstance(row, ServiceRow)
    assert (row.our_proxy, row.losses == ()) == (all_services, all_services)
    answer = answer_question(WhatIfQuestion(changes=(ScaleService("shop/cart", 6),)), snapshot, HintsForm.STABLE)
    assert [item.planned.outlook.losses == () for item in answer.rows] == [all_services]


def test_services_have_different_states() -> None:
    state, _ = publish(cluster(12, 60))
    states = {row.state for row in state.tables["services"].values() if isinstance(row, ServiceRow)}
    assert {ServiceState.IN_FORCE, ServiceState.NOT_IN_FORCE, ServiceState.NOT_ASKED} <= states


def test_hostile_names_are_not_escaped() -> None:
    state, _ = publish(hostile_cluster())
    assert f"space{HOSTILE}/service{HOSTILE}" in state.tables["services"]
    (budget,) = state.tables["budgets"].values()
    assert "not an amount" in msgspec.to_builtins(budget)["trouble"]


@pytest.mark.parametrize(
    ("workload", "progress"),
    [
        (Deployment, {"spec": {"replicas": 3}, "status": {"updatedReplicas": 1, "readyReplicas": 3}}),
        (DaemonSet, {"status": {"desiredNumberScheduled": 3, "updatedNumberScheduled": 1, "numberReady": 3}}),
        (
            StatefulSet,
            {
                "spec": {"replicas": 3},
                "status": {
                    "replicas": 3,
                    "updatedReplicas": 1,
                    "readyReplicas": 3,
                    "currentRevision": "a",
                    "updateRevision": "b",
                },
            },
        ),
    ],
    ids=["deployment", "daemonset", "statefulset"],
)
def test_a_rollout_shows_until_it_is_over(workload: type[Workload], progress: dict[str, object]) -> None:
    metadata = {"name": "web", "namespace": "shop", "annotations": {"zonewise.dev/update": "Evict"}}
    item: Workload = msgspec.convert({"metadata": metadata, **progress}, workload)
    (row,) = row_builder.rollout_rows([item]).values()
    assert (row.kind, row.wanted, row.updated, row.ready, row.by_eviction) == (workload.__name__, 3, 1, 3, True)
    done = json.loads(json.dumps(progress).replace("1", "3").replace('"a"', '"b"'))
    assert row_builder.rollout_rows([msgspec.convert({"metadata": metadata, **done}, workload)]) == {}
    unseen = {"metadata": {**metadata, "generation": 2}, **done}
    assert row_builder.rollout_rows([msgspec.convert(unseen, workload)]), "not observed by its controller yet"
    waiting = json.loads(re.sub('("readyReplicas"|"numberReady"): 3', r"\1: 0", json.dumps(done)))
    assert not row_builder.rollout_rows([msgspec.convert({"metadata": metadata, **waiting}, workload)]), (
        "waiting is no rollout"
    )
