"""Topology keys: the first label that some endpoint shares with the client decides."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import endpoint, node, service
from zonewise.api.names import BETA_ZONE, TOPOLOGY_KEYS
from zonewise.objects import Endpoint
from zonewise.routing import Decision, RoutingCode, RoutingNodes, RoutingSubject, choose, decide
from zonewise.topology import HOSTNAME, REGION, ZONE

RACK = "example.com/rack"

CLUSTER = RoutingNodes.of(
    [
        node("a1", "a", region="r", labels={RACK: "1", HOSTNAME: "host-a1"}),
        node("a2", "a", region="r", labels={RACK: "2"}),
        node("b1", "b", region="r", labels={RACK: "1"}),
        node("c1", "c", region="s"),
        node("old", labels={BETA_ZONE: "a"}),
        node("bare", labels={HOSTNAME: ""}),
    ]
)
ENDPOINTS = [endpoint("A1", "a1"), endpoint("A2", "a2"), endpoint("B1", "b1"), endpoint("LOST", "gone")]


def decided(keys: list[str], endpoints: list[Endpoint] = ENDPOINTS) -> Decision:
    return decide(service({TOPOLOGY_KEYS: json.dumps(keys)}), endpoints, CLUSTER)


CHOICES = {
    "same host": ([HOSTNAME], "a1", "A1"),
    "same host, none there, hard": ([HOSTNAME], "c1", ""),
    "same host, none there, soft": ([HOSTNAME, "*"], "c1", "A1 A2 B1 LOST"),
    "same host, none there, soft in the old way": ([HOSTNAME, ""], "c1", "A1 A2 B1 LOST"),
    "same zone": ([ZONE], "a1", "A1 A2"),
    "same zone by the old label": ([ZONE], "old", "A1 A2"),
    "the old key": ([BETA_ZONE], "a2", "A1 A2"),
    "rack before zone": ([RACK, ZONE], "b1", "A1 B1"),
    "a label the client lacks is passed over": ([RACK, ZONE], "old", "A1 A2"),
    "a label no endpoint shares is passed over": ([HOSTNAME, ZONE, REGION], "b1", "B1"),
    "the region after all": ([HOSTNAME, ZONE, REGION], "c1", ""),
    "a client without labels, hard": ([HOSTNAME, ZONE], "bare", ""),
    "a client without labels, soft": ([HOSTNAME, ZONE, "*"], "bare", "A1 A2 B1 LOST"),
    "an unknown client, hard": ([HOSTNAME], "unknown", ""),
    "an unknown client, soft": ([HOSTNAME, "*"], "unknown", "A1 A2 B1 LOST"),
    "everyone": (["*"], "c1", "A1 A2 B1 LOST"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name: str) -> None:
    keys, client, chosen = CHOICES[name]
    assert " ".join(choose(decided(keys), CLUSTER, client).shares) == chosen


def test_client_without_endpoints_gets_a_reason() -> None:
    reason = choose(decided([HOSTNAME, RACK]), CLUSTER, "c1").reason
    assert (reason.code, reason.blame) == (RoutingCode.NONE_REACHABLE, (RoutingSubject("Node", "c1"),))
    assert f"{HOSTNAME}=c1, {RACK}=(none)" in reason.sentence


def test_endpoints_hidden_by_a_hard_list_are_named() -> None:
    decision = decided([HOSTNAME, ZONE])
    assert (decision.reason.code, decision.reason.blame) == (
        RoutingCode.TOPOLOGY_KEYS,
        (RoutingSubject("Endpoint", "LOST"),),
    )
    assert decided([HOSTNAME, "*"]).reason.blame == ()


def test_zone_of_the_slice_counts_if_the_node_is_unknown() -> None:
    decision = decided([ZONE], [endpoint("X", "gone", "c")])
    assert choose(decision, CLUSTER, "c1").shares == {"X": 1.0}


def test_hard_list_stays_hard_for_terminating_endpoints() -> None:
    decision = decided([ZONE], [endpoint("A1", "a1", ready=False, serving=True, terminating=True)])
    assert choose(decision, CLUSTER, "a2").shares == {"A1": 1.0}
    assert choose(decision, CLUSTER, "b1").shares == {}


LABELS = st.dictionaries(st.sampled_from([HOSTNAME, ZONE, REGION, RACK]), st.sampled_from("12"))
KEYS = st.lists(st.sampled_from([HOSTNAME, ZONE, REGION, RACK]), unique=True, max_size=4)


@given(st.lists(LABELS, min_size=1, max_size=6), KEYS, st.booleans(), st.data())
def test_choice_agrees_with_a_literal_implementation(
    labels: list[dict[str, str]], keys: list[str], soft: bool, data: st.DataObject
) -> None:
    """For each key in turn: the endpoints whose node has the client's value; the first that are any."""
    nodes = RoutingNodes.of(
        node(str(number), labels={HOSTNAME: ""} | node_labels) for number, node_labels in enumerate(labels)
    )
    hosts = data.draw(st.lists(st.integers(0, len(labels) - 1), min_size=1, max_size=6))
    endpoints = [endpoint(f"e{number}", str(host)) for number, host in enumerate(hosts)]
    client = data.draw(st.integers(0, len(labels) - 1))
    key_list = [*keys, "*"] if soft else keys
    decision = decide(service({TOPOLOGY_KEYS: json.dumps(key_list)}), endpoints, nodes)

    expected: list[str] = []
    for key in keys:
        value = labels[client].get(key)
        expected = expected or [f"e{n}" for n, host in enumerate(hosts) if value and labels[host].get(key) == value]
    if not expected and (soft or not keys):
        expected = [f"e{number}" for number in range(len(hosts))]
    assert list(choose(decision, nodes, str(client)).shares) == expected
