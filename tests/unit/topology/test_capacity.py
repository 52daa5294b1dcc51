"""Which nodes count, for how much, and why the others don't."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.names import BETA_ZONE, ZONE
from zonewise.objects import Node
from zonewise.topology.capacity import Capacity, DomainTotal, LeftOut, capacities_by_domain, capacity_of

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
MASTER = "node-role.kubernetes.io/master"


def node(
    name: str = "n1",
    *,
    labels: dict[str, str] | None = None,
    cpu: str | None = "4",
    ready: str | None = "True",
    cordoned: bool = False,
) -> Node:
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": {ZONE: "a"} if labels is None else labels},
        "spec": {"unschedulable": cordoned},
        "status": {
            "allocatable": {} if cpu is None else {"cpu": cpu, "memory": "1Gi"},
            "conditions": [{"type": "DiskPressure", "status": "False"}]
            + ([] if ready is None else [{"type": "Ready", "status": ready}]),
        },
    }
    return msgspec.convert(body, Node)


CAPACITIES = {
    "a plain worker": (node(), Capacity(ready=True, schedulable=True, control_plane=False, cpu_millis=4000)),
    "not ready": (node(ready="False"), Capacity(ready=False, schedulable=True, control_plane=False, cpu_millis=4000)),
    "unknown": (node(ready="Unknown"), Capacity(ready=False, schedulable=True, control_plane=False, cpu_millis=4000)),
    "no condition": (node(ready=None), Capacity(ready=False, schedulable=True, control_plane=False, cpu_millis=4000)),
    "cordoned": (node(cordoned=True), Capacity(ready=True, schedulable=False, control_plane=False, cpu_millis=4000)),
    "control plane": (
        node(labels={CONTROL_PLANE: ""}),
        Capacity(ready=True, schedulable=True, control_plane=True, cpu_millis=4000),
    ),
    "master, any value": (
        node(labels={MASTER: "false"}),
        Capacity(ready=True, schedulable=True, control_plane=True, cpu_millis=4000),
    ),
    "millis": (node(cpu="3920m"), Capacity(ready=True, schedulable=True, control_plane=False, cpu_millis=3920)),
    "no cpu": (node(cpu=None), Capacity(ready=True, schedulable=True, control_plane=False, cpu_millis=None)),
    "unreadable": (node(cpu="four"), Capacity(ready=True, schedulable=True, control_plane=False, cpu_millis=None)),
}


@pytest.mark.parametrize(("seen", "capacity"), CAPACITIES.values(), ids=CAPACITIES)
def test_capacity_of(seen: Node, capacity: Capacity) -> None:
    assert capacity_of(seen) == capacity


LEFT_OUT = {
    "control plane before all else": (node(labels={CONTROL_PLANE: ""}, ready="False"), LeftOut.CONTROL_PLANE),
    "not ready": (node(ready="False"), LeftOut.NOT_READY),
    "no zone": (node(labels={}), LeftOut.NO_DOMAIN),
    "empty zone": (node(labels={ZONE: ""}), LeftOut.NO_DOMAIN),
    "no cpu": (node(cpu=None), LeftOut.NO_CPU),
    "zero cpu": (node(cpu="0"), LeftOut.NO_CPU),
    "negative cpu": (node(cpu="-1"), LeftOut.NO_CPU),
}


@pytest.mark.parametrize(("seen", "why"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_left_out(seen: Node, why: LeftOut) -> None:
    capacities = capacities_by_domain([seen])
    assert not capacities.domains
    assert capacities.left_out["n1"].code == why
    assert "n1" in str(capacities.left_out["n1"])
    assert capacities.lacking() == (["n1"] if why in {LeftOut.NO_DOMAIN, LeftOut.NO_CPU} else [])


def test_totals_per_zone_with_either_spelling() -> None:
    nodes = [
        node("n1"),
        node("n2", cpu="1500m"),
        node("n3", labels={BETA_ZONE: "b"}, cpu="0.1m"),
        node("n4", ready="False"),
    ]
    capacities = capacities_by_domain(nodes)
    assert capacities.domains == {"a": DomainTotal(5500, 2), "b": DomainTotal(1, 1)}
    assert capacities.cpu_millis == 5501
    assert list(capacities.left_out) == ["n4"]


def test_cordoned_nodes_count_by_default() -> None:
    nodes = [node("n1"), node("n2", cordoned=True)]
    assert capacities_by_domain(nodes).domains["a"].nodes == 2
    only_schedulable = capacities_by_domain(nodes, only_schedulable=True)
    assert only_schedulable.domains["a"].nodes == 1
    assert only_schedulable.left_out["n2"].code == LeftOut.UNSCHEDULABLE


def test_any_label_makes_domains() -> None:
    nodes = [node("n1", labels={"rack": "r1"}), node("n2", labels={"rack": "r2"}), node("n3")]
    capacities = capacities_by_domain(nodes, "rack")
    assert set(capacities.domains) == {"r1", "r2"}
    assert "has no label rack" in capacities.left_out["n3"].sentence


NODES = st.lists(
    st.builds(
        node,
        st.uuids().map(str),
        labels=st.dictionaries(st.sampled_from([ZONE, BETA_ZONE, CONTROL_PLANE]), st.sampled_from(["", "a", "b"])),
        cpu=st.sampled_from([None, "0", "1", "250m", "x"]),
        ready=st.sampled_from([None, "True", "False"]),
        cordoned=st.booleans(),
    ),
    unique_by=lambda seen: seen.metadata.name,
)


@given(NODES, st.booleans())
def test_every_node_counts_once_or_is_explained(nodes: list[Node], only_schedulable: bool) -> None:
    capacities = capacities_by_domain(nodes, only_schedulable=only_schedulable)
    counted = sum(total.nodes for total in capacities.domains.values())
    assert counted + len(capacities.left_out) == len(nodes)
    assert all(total.cpu_millis > 0 for total in capacities.domains.values())
