"""The routing state annotation: its content, when it changes, and which events are emitted."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.api.names import (
    OLD_HINTS,
    PADDING,
    PROXY_NAME_LABEL,
    SAME_NODE,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
)
from zonewise.objects import Endpoint, Metadata, Service, ServiceSpec
from zonewise.objects.events import Severity
from zonewise.routing import DRAIN_ZONE, HintsForm, RoutingNodes, decide, drained_zones, express
from zonewise.slices.decide.service_status import ServiceRoutingState, read_state
from zonewise.slices.decide.status_diff import StatusReport, report_on

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
THREE = cluster({"a": 1, "b": 1, "c": 1})
AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
PREFER = service({SAME_ZONE: "Prefer"})
TWELVE = {"a": 4, "b": 4, "c": 4}


def diff(
    svc: Service,
    endpoints_or_counts: Mapping[str, int] | Sequence[Endpoint],
    before: StatusReport | str | None = None,
    *,
    nodes: RoutingNodes = THREE,
    hours: float = 0,
    families: tuple[str, ...] = ("IPv4",),
    **options: Any,
) -> StatusReport:
    all_endpoints = (
        endpoints(endpoints_or_counts) if isinstance(endpoints_or_counts, Mapping) else list(endpoints_or_counts)
    )
    drain = drained_zones(svc, {}, nodes.node_drains)
    form = HintsForm.STRICT if options.get("stock_events") else HintsForm.STABLE
    decisions = {family: decide(svc, all_endpoints, nodes, hints=form, drained=drain) for family in families}
    expressions = {family: express(decision, nodes) for family, decision in decisions.items()}
    text = before.text if isinstance(before, StatusReport) else before
    return report_on(svc, decisions, expressions, nodes, text, NOON + timedelta(hours=hours), **options)


def events(report: StatusReport) -> list[str]:
    return [f"{note.severity} {note.reason}: {note.text}" for note in report.notes]


def test_annotation_content() -> None:
    report = diff(PREFER, {"a": 4, "b": 4, "c": 3})
    assert report.text is not None
    assert json.loads(report.text) == {
        "version": 1,
        "policy": "same-zone Prefer",
        "source": SAME_ZONE,
        "active": False,
        "code": "BelowStart",
        "sentence": "11 endpoints are too few: 12 are needed (starting threshold 9, padding 3)",
        "remedy": "run 1 more, or lower zonewise.dev/starting-threshold or zonewise.dev/padding: their sum counts",
        "endpoints": 11,
        "inZone": 0.33,
        "worstOverload": 0.0,
        "since": "2026-11-16T12:00:00Z",
        "asOf": "2026-11-16T12:00:00Z",
    }
    assert events(report) == [
        (
            "Warning BelowStart: same-zone Prefer is not in force: 11 endpoints are too few: 12 are needed (starting threshold "
            "9, padding 3). What helps: run 1 more, or lower zonewise.dev/starting-threshold or zonewise.dev/padding: their sum counts"
        )
    ]


POLICIES = {
    "keys, hard": (service({TOPOLOGY_KEYS: '["rack"]'}), "topology-keys (hard)", "TopologyKeys", True),
    "keys, soft": (service({TOPOLOGY_KEYS: '["rack", "*"]'}), "topology-keys (soft)", "TopologyKeys", True),
    "balanced": (service({SAME_ZONE: "Balanced"}), "same-zone Balanced", "Balanced", True),
    "required": (service({SAME_ZONE: "Require"}), "same-zone Require, same-region Require", "Required", True),
    "preferred": (PREFER, "same-zone Prefer", "Preferred", True),
    "hints": (service({OLD_HINTS: "Auto"}), "automatic hints", "Hinted", True),
    "distribution": (
        service(traffic_distribution="PreferSameZone"),
        "trafficDistribution PreferSameZone",
        "Distributed",
        True,
    ),
    "node in force, zone not": (
        service({SAME_NODE: "Prefer", SAME_ZONE: "Prefer", STARTING_THRESHOLD: "99"}),
        "same-node Prefer, same-zone Prefer",
        "BelowStart",
        False,
    ),
    "nothing but a mistake": (service({TOPOLOGY_KEYS: "rack"}), "none", "NoPolicy", False),
    "nothing but a drain": (service({DRAIN_ZONE: "a"}), "none", "ZoneDrained", True),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policy_code_and_activity(name: str) -> None:
    svc, policy, code, active = POLICIES[name]
    state = diff(svc, TWELVE).state
    assert state is not None
    assert (state.policy, state.code, state.active) == (policy, code, active)


def test_service_without_policy_has_no_annotation() -> None:
    assert diff(service(), TWELVE) == StatusReport(None, None)


def test_annotation_is_removed_with_the_policy() -> None:
    report = diff(service(), TWELVE, diff(PREFER, TWELVE))
    assert (report.changes, report.text) == (True, None)
    assert events(report) == [
        "Normal NoPolicy: same-zone Prefer ended: the Service has no routing policy, so every client gets every endpoint"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"policy": 1}'])
def test_invalid_annotation_is_replaced(text: str) -> None:
    report = diff(PREFER, TWELVE, text)
    assert report.changes
    assert diff(PREFER, TWELVE, report).changes is False


UNCHANGED = {
    "nothing happened": (TWELVE, TWELVE),
    "a pod more": (TWELVE, {"a": 5, "b": 4, "c": 4}),
    "a rolling update's surge": ({"a": 8, "b": 8, "c": 8}, {"a": 9, "b": 9, "c": 9}),
    "refused, and a pod more": ({"a": 3, "b": 3, "c": 3}, {"a": 4, "b": 3, "c": 3}),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_small_changes_keep_the_annotation(name: str) -> None:
    before, after = UNCHANGED[name]
    first = diff(PREFER, before)
    second = diff(PREFER, after, first, hours=1)
    assert (second.changes, second.text, second.notes) == (False, first.text, ())


CHANGED = {
    "another code": (PREFER, TWELVE, PREFER, {"a": 2, "b": 2, "c": 2}, 1),
    "another policy": (PREFER, TWELVE, service({SAME_ZONE: "Require"}), TWELVE, 2),
    "other figures": (
        service({SAME_ZONE: "Require"}),
        {"a": 3, "b": 3, "c": 3},
        service({SAME_ZONE: "Require"}),
        {"a": 3, "b": 3, "c": 2},
        0,
    ),
    "many more endpoints": (PREFER, {"a": 2, "b": 2, "c": 2}, PREFER, {"a": 3, "b": 3, "c": 3}, 0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changes_that_rewrite_the_annotation(name: str) -> None:
    """Only a change of state makes events; changed figures do not."""
    first_svc, before, second_svc, after, notes = CHANGED[name]
    first = diff(first_svc, before)
    second = diff(second_svc, after, first, hours=1)
    assert second.changes
    assert len(second.notes) == notes
    assert second.state is not None
    assert second.state.since == ("2026-11-16T13:00:00Z" if notes else "2026-11-16T12:00:00Z")
    assert second.state.as_of == "2026-11-16T13:00:00Z"


BAD_VALUES = {
    "wrong case": {SAME_ZONE: "prefer"},
    "broken JSON": {TOPOLOGY_KEYS: '["rack"'},
    "17 keys": {TOPOLOGY_KEYS: json.dumps([f"k{number}" for number in range(17)])},
    "a key twice": {TOPOLOGY_KEYS: '["a", "a"]'},
    "* first": {TOPOLOGY_KEYS: '["*", "a"]'},
    "negative threshold": {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "-3"},
    "padding larger than threshold": {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "4", PADDING: "5"},
    "a megabyte": {SAME_ZONE: "x" * 1_000_000},
    "hints misspelled": {OLD_HINTS: "AUTO"},
    "no zone to drain": {DRAIN_ZONE: "nowhere"},
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values_make_one_event_and_no_second_write(name: str) -> None:
    first = diff(service(BAD_VALUES[name]), TWELVE)
    (complaint,) = [note for note in first.notes if note.reason in {"InvalidValue", "NoEffect"}]
    assert complaint.severity is Severity.WARNING
    assert "What helps: " in complaint.text
    assert len(complaint.text) < 1024
    assert first.text is not None
    assert len(first.text) < 2000
    assert diff(service(BAD_VALUES[name]), TWELVE, first, hours=1).changes is False


def test_second_mistake_makes_one_more_event() -> None:
    first = diff(service({SAME_ZONE: "Prefer", PADDING: "x"}), TWELVE)
    second = diff(service({SAME_ZONE: "Prefer", PADDING: "x", STARTING_THRESHOLD: "y"}), TWELVE, first)
    (text,) = events(second)
    assert text.startswith(
        "Warning InvalidValue: zonewise.dev/starting-threshold: 'y' is invalid, the default applies."
    )


def test_losses_of_stock_proxies_are_reported() -> None:
    report = diff(service({SAME_ZONE: "Require"}), {"a": 3, "b": 3})
    assert report.state is not None
    assert report.state.losses == ("the rule is hard, and stock proxies fall back to every endpoint",)
    assert report.state.blame == ("Zone c",)
    assert events(report)[1] == (
        "Warning NeedsProxy: stock proxies will not do all that was decided: the rule is hard, and stock proxies fall back "
        "to every endpoint. What helps: label the Service service.kubernetes.io/service-proxy-name=zonewise where the "
        "Zonewise proxy runs"
    )


def test_headless_service_needs_dns() -> None:
    requiring = service({SAME_ZONE: "Require"})
    headless = Service(metadata=requiring.metadata, spec=ServiceSpec(cluster_ip="None"))
    report = diff(headless, TWELVE)
    assert report.state is not None
    assert len(report.state.losses) == 1
    (line,) = [line for line in events(report) if "Needs" in line]
    assert line.startswith("Warning NeedsDNS: the Service is headless")
    assert "stock DNS gives its clients every endpoint. What helps: answer the cluster's names" in line


def test_zone_that_is_cut_off_makes_a_warning() -> None:
    require = service({SAME_ZONE: "Require"})
    before = diff(require, TWELVE)
    assert [note.severity for note in before.notes if note.reason == "Required"] == [Severity.NORMAL]
    emptied = diff(require, {"a": 4, "b": 4}, before)
    (line,) = events(emptied)
    assert line.startswith("Warning Required: ")
    assert "cannot reach the Service: c" in line
    assert events(diff(require, {"a": 4}, emptied))
    assert events(diff(require, TWELVE, emptied)) == []


def test_zonewise_proxy_has_no_losses() -> None:
    svc = Service(
        metadata=Metadata(annotations={SAME_ZONE: "Require"}, labels={PROXY_NAME_LABEL: "zonewise"}), spec=ServiceSpec()
    )
    report = diff(svc, TWELVE)
    assert report.state is not None
    assert (report.state.losses, len(report.notes)) == ((), 1)


def test_events_of_a_drain() -> None:
    first = diff(PREFER, TWELVE)
    drained = diff(service({SAME_ZONE: "Prefer", DRAIN_ZONE: "a", STARTING_THRESHOLD: "1"}), TWELVE, first)
    assert events(drained) == [
        (
            "Normal ZoneDrained: zone a is drained by Service shop/web: 4 endpoints there get no traffic, 8 elsewhere take it. "
            "What helps: remove zonewise.dev/drain-zone to let traffic return"
        )
    ]
    assert drained.state is not None
    assert (drained.state.code, drained.state.drain, drained.state.drained) == ("Preferred", "ZoneDrained", ("a",))
    ended = diff(PREFER, TWELVE, drained)
    assert events(ended) == ["Normal DrainEnded: traffic returns to a"]


def test_drain_and_ended_policy_have_an_event_each() -> None:
    drained = diff(service({SAME_ZONE: "Prefer", DRAIN_ZONE: "a"}), TWELVE, diff(PREFER, TWELVE))
    assert events(drained) == [
        (
            "Warning BelowStart: same-zone Prefer is not in force: 8 endpoints are too few: 12 are needed (starting "
            "threshold 9, padding 3). What helps: run 4 more, or lower zonewise.dev/starting-threshold or zonewise.dev/padding: their sum counts"
        ),
        (
            "Normal ZoneDrained: zone a is drained by Service shop/web: 4 endpoints there get no traffic, 8 elsewhere take "
            "it. What helps: remove zonewise.dev/drain-zone to let traffic return"
        ),
    ]


def test_a_drain_without_a_policy() -> None:
    first = diff(service({DRAIN_ZONE: "a"}), TWELVE)
    assert [note.reason for note in first.notes] == ["ZoneDrained"]
    more = diff(service({DRAIN_ZONE: "a,b"}), TWELVE, first)
    assert [note.text.split(":")[0] for note in more.notes] == ["zones a, b are drained by Service shop/web"]
    nowhere_else = diff(service({DRAIN_ZONE: "a,b,c"}), TWELVE, more)
    assert [note.reason for note in nowhere_else.notes] == ["NotDrained", "DrainEnded"]
    ended = diff(service(), TWELVE, first)
    assert (ended.text, events(ended)) == (None, ["Normal DrainEnded: traffic returns to a"])


def test_family_whose_policy_is_not_in_force_gives_the_reason() -> None:
    decisions = {
        "IPv4": decide(PREFER, endpoints(TWELVE), THREE),
        "IPv6": decide(PREFER, endpoints({"a": 1}), THREE),
    }
    expressions = {family: express(decision, THREE) for family, decision in decisions.items()}
    state = report_on(PREFER, decisions, expressions, THREE, None, NOON).state
    assert state is not None
    assert (state.code, state.active) == ("BelowStart", False)
    assert state.sentence.startswith("IPv6: 1 endpoint is too few")


def test_equal_families_are_reported_once() -> None:
    report = diff(PREFER, TWELVE, families=("IPv4", "IPv6"))
    assert report.state is not None
    assert report.state.sentence.startswith("100% of the traffic")
    assert len(report.notes) == 1


def test_stock_events_for_each_family() -> None:
    hints = service({OLD_HINTS: "Auto"})
    first = diff(hints, TWELVE, families=("IPv4", "IPv6"), stock_events=True)
    assert events(first)[1:] == [
        f"Normal TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: {family}"
        for family in ("IPv4", "IPv6")
    ]
    second = diff(hints, {"a": 1, "b": 1}, first, stock_events=True)
    assert events(second)[1:] == [
        "Warning TopologyAwareHintsDisabled: Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4"
    ]


def test_nodes_to_blame_are_named() -> None:
    nodes = RoutingNodes.of([*THREE.nodes.values(), node("x1")])
    state = diff(service({OLD_HINTS: "Auto"}), TWELVE, nodes=nodes).state
    assert state is not None
    assert state.blame == ("Node x1",)


ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        SAME_ZONE: st.sampled_from(["Prefer", "Require", "x"]),
        TOPOLOGY_KEYS: st.sampled_from(['["topology.kubernetes.io/zone"]', "x"]),
        OLD_HINTS: st.sampled_from(["Auto", "x"]),
        DRAIN_ZONE: st.sampled_from(["a", "a,b,c", "x", ""]),
    },
)
COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


@given(ANNOTATIONS, COUNTS, ANNOTATIONS, COUNTS)
def test_reported_state_is_not_reported_again(first: Any, counts: Any, second: Any, later_counts: Any) -> None:
    """After any history: what was reported is not reported again, and reads back as written."""
    before = diff(service(first), counts)
    report = diff(service(second), later_counts, before, hours=1)
    again = diff(service(second), later_counts, report, hours=2)
    assert (again.changes, again.notes, again.text) == (False, (), report.text)
    assert read_state(report.text) == (report.state if report.changes else read_state(before.text))
    assert report.state is None or isinstance(report.state, ServiceRoutingState)


def test_changed_endpoints_to_blame_make_no_write() -> None:
    svc = service(traffic_distribution="PreferSameZone")
    first = diff(svc, [endpoint("10.0.0.1"), endpoint("10.0.0.2", "a1", "a")])
    second = diff(svc, [endpoint("10.0.0.3"), endpoint("10.0.0.2", "a1", "a")], first)
    assert (first.state is not None and first.state.blame, second.changes) == (("Endpoint 10.0.0.1",), False)
