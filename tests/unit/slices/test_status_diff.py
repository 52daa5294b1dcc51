"""What a Service's annotation says, when it changes, and which events are new."""

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


def told(
    written: Service,
    there: Mapping[str, int] | Sequence[Endpoint],
    before: StatusReport | str | None = None,
    *,
    where: RoutingNodes = THREE,
    hours: float = 0,
    families: tuple[str, ...] = ("IPv4",),
    **options: Any,
) -> StatusReport:
    found = endpoints(there) if isinstance(there, Mapping) else list(there)
    drain = drained_zones(written, {}, where.node_drains)
    form = HintsForm.STRICT if options.get("stock_events") else HintsForm.STABLE
    decisions = {family: decide(written, found, where, hints=form, drained=drain) for family in families}
    expressions = {family: express(decision, where) for family, decision in decisions.items()}
    text = before.text if isinstance(before, StatusReport) else before
    return report_on(written, decisions, expressions, where, text, NOON + timedelta(hours=hours), **options)


def said(report: StatusReport) -> list[str]:
    return [f"{note.severity} {note.reason}: {note.text}" for note in report.notes]


def test_what_the_annotation_says() -> None:
    report = told(PREFER, {"a": 4, "b": 4, "c": 3})
    assert report.text is not None
    assert json.loads(report.text) == {
        "policy": "same-zone Prefer",
        "source": SAME_ZONE,
        "active": False,
        "code": "BelowStart",
        "sentence": "11 endpoints are too few: 12 are needed (starting threshold 9, padding 3)",
        "remedy": "run 1 more, or lower zonewise.dev/starting-threshold",
        "endpoints": 11,
        "inZone": 0.33,
        "worstOverload": 0.0,
        "since": "2026-11-16T12:00:00Z",
        "asOf": "2026-11-16T12:00:00Z",
    }
    assert said(report) == [
        (
            "Warning BelowStart: same-zone Prefer is not in force: 11 endpoints are too few: 12 are needed (starting threshold "
            "9, padding 3). What helps: run 1 more, or lower zonewise.dev/starting-threshold"
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
    "the node gets its way, the zone does not": (
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
    written, policy, code, active = POLICIES[name]
    state = told(written, TWELVE).state
    assert state is not None
    assert (state.policy, state.code, state.active) == (policy, code, active)


def test_a_service_that_asks_for_nothing_has_no_annotation() -> None:
    assert told(service(), TWELVE) == StatusReport(None, None)


def test_and_loses_an_old_one() -> None:
    report = told(service(), TWELVE, told(PREFER, TWELVE))
    assert (report.changes, report.text) == (True, None)
    assert said(report) == [
        "Normal NoPolicy: same-zone Prefer ended: the Service has no routing policy, so every client gets every endpoint"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"policy": 1}'])
def test_what_nobody_can_read_is_written_anew(text: str) -> None:
    report = told(PREFER, TWELVE, text)
    assert report.changes
    assert told(PREFER, TWELVE, report).changes is False


UNCHANGED = {
    "nothing happened": (TWELVE, TWELVE),
    "a pod more": (TWELVE, {"a": 5, "b": 4, "c": 4}),
    "a rolling update's surge": ({"a": 8, "b": 8, "c": 8}, {"a": 9, "b": 9, "c": 9}),
    "refused, and a pod more": ({"a": 3, "b": 3, "c": 3}, {"a": 4, "b": 3, "c": 3}),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_the_annotation_stays_as_it_is(name: str) -> None:
    before, after = UNCHANGED[name]
    first = told(PREFER, before)
    second = told(PREFER, after, first, hours=1)
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
def test_the_annotation_changes(name: str) -> None:
    """And only a change of state is news; figures are not."""
    first_asked, before, then_asked, after, notes = CHANGED[name]
    first = told(first_asked, before)
    second = told(then_asked, after, first, hours=1)
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
    first = told(service(BAD_VALUES[name]), TWELVE)
    (complaint,) = [note for note in first.notes if note.reason in {"InvalidValue", "NoEffect"}]
    assert complaint.severity is Severity.WARNING
    assert "What helps: " in complaint.text
    assert len(complaint.text) < 1024
    assert first.text is not None
    assert len(first.text) < 2000
    assert told(service(BAD_VALUES[name]), TWELVE, first, hours=1).changes is False


def test_a_second_mistake_is_told_alone() -> None:
    first = told(service({SAME_ZONE: "Prefer", PADDING: "x"}), TWELVE)
    second = told(service({SAME_ZONE: "Prefer", PADDING: "x", STARTING_THRESHOLD: "y"}), TWELVE, first)
    (text,) = said(second)
    assert text.startswith(
        "Warning InvalidValue: zonewise.dev/starting-threshold: 'y' is invalid, the default applies."
    )


def test_what_hints_cannot_say_is_told() -> None:
    report = told(service({SAME_ZONE: "Require"}), {"a": 3, "b": 3})
    assert report.state is not None
    assert report.state.losses == ("the rule is hard, and stock proxies fall back to every endpoint",)
    assert report.state.blame == ("Zone c",)
    assert said(report)[1] == (
        "Warning NeedsProxy: stock proxies will not do all that was decided: the rule is hard, and stock proxies fall back "
        "to every endpoint. What helps: label the Service service.kubernetes.io/service-proxy-name=zonewise where the "
        "Zonewise proxy runs"
    )


def test_a_headless_service_is_a_matter_of_dns() -> None:
    found = service({SAME_ZONE: "Require"})
    headless = Service(metadata=found.metadata, spec=ServiceSpec(cluster_ip="None"))
    report = told(headless, TWELVE)
    assert report.state is not None
    assert len(report.state.losses) == 1
    (line,) = [line for line in said(report) if "Needs" in line]
    assert line.startswith("Warning NeedsDNS: the Service is headless")
    assert "stock DNS gives its clients every endpoint. What helps: answer the cluster's names" in line


def test_a_zone_that_may_not_reach_anything_any_more_is_told() -> None:
    require = service({SAME_ZONE: "Require"})
    before = told(require, TWELVE)
    assert [note.severity for note in before.notes if note.reason == "Required"] == [Severity.NORMAL]
    emptied = told(require, {"a": 4, "b": 4}, before)
    (line,) = said(emptied)
    assert line.startswith("Warning Required: ")
    assert "cannot reach the Service: c" in line
    assert said(told(require, {"a": 4}, emptied))
    assert said(told(require, TWELVE, emptied)) == []


def test_the_zonewise_proxy_loses_nothing() -> None:
    written = Service(
        metadata=Metadata(annotations={SAME_ZONE: "Require"}, labels={PROXY_NAME_LABEL: "zonewise"}), spec=ServiceSpec()
    )
    report = told(written, TWELVE)
    assert report.state is not None
    assert (report.state.losses, len(report.notes)) == ((), 1)


def test_a_drain_begins_and_ends() -> None:
    first = told(PREFER, TWELVE)
    drained = told(service({SAME_ZONE: "Prefer", DRAIN_ZONE: "a", STARTING_THRESHOLD: "1"}), TWELVE, first)
    assert said(drained) == [
        (
            "Normal ZoneDrained: zone a is drained by Service shop/web: 4 endpoints there get no traffic, 8 elsewhere take it. "
            "What helps: remove zonewise.dev/drain-zone to let traffic return"
        )
    ]
    assert drained.state is not None
    assert (drained.state.code, drained.state.drain, drained.state.drained) == ("Preferred", "ZoneDrained", ("a",))
    ended = told(PREFER, TWELVE, drained)
    assert said(ended) == ["Normal DrainEnded: traffic returns to a"]


def test_a_policy_that_ends_with_a_drain_and_the_drain_have_an_event_each() -> None:
    drained = told(service({SAME_ZONE: "Prefer", DRAIN_ZONE: "a"}), TWELVE, told(PREFER, TWELVE))
    assert said(drained) == [
        (
            "Warning BelowStart: same-zone Prefer is not in force: 8 endpoints are too few: 12 are needed (starting "
            "threshold 9, padding 3). What helps: run 4 more, or lower zonewise.dev/starting-threshold"
        ),
        (
            "Normal ZoneDrained: zone a is drained by Service shop/web: 4 endpoints there get no traffic, 8 elsewhere take "
            "it. What helps: remove zonewise.dev/drain-zone to let traffic return"
        ),
    ]


def test_a_drain_without_a_policy() -> None:
    first = told(service({DRAIN_ZONE: "a"}), TWELVE)
    assert [note.reason for note in first.notes] == ["ZoneDrained"]
    more = told(service({DRAIN_ZONE: "a,b"}), TWELVE, first)
    assert [note.text.split(":")[0] for note in more.notes] == ["zones a, b are drained by Service shop/web"]
    nowhere_else = told(service({DRAIN_ZONE: "a,b,c"}), TWELVE, more)
    assert [note.reason for note in nowhere_else.notes] == ["NotDrained", "DrainEnded"]
    ended = told(service(), TWELVE, first)
    assert (ended.text, said(ended)) == (None, ["Normal DrainEnded: traffic returns to a"])


def test_of_two_families_the_one_that_does_not_get_its_way_speaks() -> None:
    decisions = {
        "IPv4": decide(PREFER, endpoints(TWELVE), THREE),
        "IPv6": decide(PREFER, endpoints({"a": 1}), THREE),
    }
    expressions = {family: express(decision, THREE) for family, decision in decisions.items()}
    state = report_on(PREFER, decisions, expressions, THREE, None, NOON).state
    assert state is not None
    assert (state.code, state.active) == ("BelowStart", False)
    assert state.sentence.startswith("IPv6: 1 endpoint is too few")


def test_two_families_alike_speak_once() -> None:
    report = told(PREFER, TWELVE, families=("IPv4", "IPv6"))
    assert report.state is not None
    assert report.state.sentence.startswith("100% of the traffic")
    assert len(report.notes) == 1


def test_the_stock_controllers_words_for_each_family() -> None:
    hints = service({OLD_HINTS: "Auto"})
    first = told(hints, TWELVE, families=("IPv4", "IPv6"), stock_events=True)
    assert said(first)[1:] == [
        f"Normal TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: {family}"
        for family in ("IPv4", "IPv6")
    ]
    second = told(hints, {"a": 1, "b": 1}, first, stock_events=True)
    assert said(second)[1:] == [
        "Warning TopologyAwareHintsDisabled: Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4"
    ]


def test_nodes_to_blame_are_named() -> None:
    where = RoutingNodes.of([*THREE.nodes.values(), node("x1")])
    state = told(service({OLD_HINTS: "Auto"}), TWELVE, where=where).state
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
def test_saying_it_once_is_enough(first: Any, there: Any, second: Any, later: Any) -> None:
    """Whatever came before: what was reported is not reported again, and reads back as it was written."""
    before = told(service(first), there)
    report = told(service(second), later, before, hours=1)
    again = told(service(second), later, report, hours=2)
    assert (again.changes, again.notes, again.text) == (False, (), report.text)
    assert read_state(report.text) == (report.state if report.changes else read_state(before.text))
    assert report.state is None or isinstance(report.state, ServiceRoutingState)


def test_endpoints_to_blame_come_and_go_without_a_write() -> None:
    written = service(traffic_distribution="PreferSameZone")
    first = told(written, [endpoint("10.0.0.1"), endpoint("10.0.0.2", "a1", "a")])
    second = told(written, [endpoint("10.0.0.3"), endpoint("10.0.0.2", "a1", "a")], first)
    assert (first.state is not None and first.state.blame, second.changes) == (("Endpoint 10.0.0.1",), False)
