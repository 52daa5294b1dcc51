"""A user's own inputs: valid files, and errors for invalid ones."""

from __future__ import annotations

import json

import pytest

from zonewise.errors import UsageError
from zonewise.simulator.decide.inputs import NamedInput, read

HEADER = "name,nodes.a,nodes.b,endpoints.a,endpoints.b\n"


def test_csv_rows_become_inputs_with_zones_in_order_of_name() -> None:
    text = "nodes.b,endpoints.b,nodes.a,endpoints.a\n1,2,3,4\n\n 5 ,6,7,8\n"
    assert read(text, "own.csv") == [
        NamedInput("own.csv:2", ("a", "b"), (3, 1), (4, 2)),
        NamedInput("own.csv:4", ("a", "b"), (7, 5), (8, 6)),
    ]


def test_csv_rows_may_be_named() -> None:
    assert read(HEADER + "shop,1,1,2,0\n", "own.csv") == [NamedInput("shop", ("a", "b"), (1, 1), (2, 0))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.csv:1: no zone"),
        (HEADER, "own.csv: no inputs"),
        ("zone,count\na,1\n", "own.csv:1: unknown column 'zone'"),
        ("nodes.a,nodes.a,endpoints.a\n1,1,1\n", "own.csv:1: column 'nodes.a' stands twice"),
        ("nodes.a,nodes.b,endpoints.a\n1,1,1\n", "own.csv:1: zone 'b' has only one of its two columns"),
        (HEADER + "x,1,1,2\n", "own.csv:2: 4 values for 5 columns"),
        (HEADER + "x,1,1,-2,0\n", "own.csv:2: endpoints.a is '-2'; write a whole number"),
        (HEADER + "x,1,1,2.5,0\n", "own.csv:2: endpoints.a is '2.5'"),
        (HEADER + "x,1,1,,0\n", "own.csv:2: endpoints.a is ''"),
        (HEADER + "x,1,1,1,0\ny,1,1,1000001,0\n", "own.csv:3: endpoints.a is 1000001"),
        (HEADER + f"x,1,1,{'9' * 9999},0\n", "own.csv:2: endpoints.a is 99999999999999999999;"),
        (HEADER + "x,0,0,1,0\n", "own.csv:2: no zone has a node"),
        (HEADER + "x,1,1,0,0\n", "own.csv:2: no zone has an endpoint"),
        (HEADER + 'x,1,1,"2,0\n', "own.csv:2: not CSV"),
        ('{"kind": ', "own.csv: not JSON"),
        ("apiVersion: v1\nkind: [\n", "own.csv:3: not YAML"),
        ('{"items": []}', "own.csv: not a dump of Kubernetes objects"),
        ('{"kind": "List", "items": []}', "own.csv: no nodes in it"),
        ('{"kind": "Node", "metadata": {"name": "n1", "labels": 5}}', "own.csv: Node 'n1' can't be read"),
    ],
)
def test_bad_input_is_rejected_in_one_line_with_its_position(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(text, "own.csv")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def node(name: str, zone: str, *, ready: str = "True", **labels: str) -> dict[str, object]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone, **labels}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def endpoint(node_name: str, *, ready: bool | None = True) -> dict[str, object]:
    return {"addresses": ["192.0.2.1"], "nodeName": node_name, "conditions": {"ready": ready}}


def slice_of(service: str, *endpoints: dict[str, object]) -> dict[str, object]:
    metadata = {"name": f"{service}-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": service}}
    return {"kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4", "endpoints": list(endpoints) or None}


def test_dump_counts_ready_workers_and_ready_endpoints_by_zone() -> None:
    control_plane = {"node-role.kubernetes.io/control-plane": ""}
    items = [
        node("a1", "a"),
        node("a2", "a", ready="False"),
        node("b1", "b"),
        node("b2", "b"),
        node("c1", "c", **control_plane),
        slice_of("front", endpoint("a1"), endpoint("b1", ready=None), endpoint("b2", ready=False)),
        slice_of("front", endpoint("b2")),
        slice_of("empty"),
        {"kind": "Service", "metadata": {"name": "front", "namespace": "shop"}},
    ]
    dump = json.dumps({"kind": "List", "apiVersion": "v1", "items": items})
    assert read(dump, "dump.json") == [NamedInput("shop/front", ("a", "b"), (1, 2), (1, 2))]
