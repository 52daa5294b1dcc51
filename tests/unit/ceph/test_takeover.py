"""Takeover map: strict parsing, the labels of nodes, and edits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.ceph.decide import takeover
from zonewise.ceph.decide.domains import ACTIVE, DomainLabels, Segments, accessible_topology, takeover_key
from zonewise.ceph.decide.takeover import DOCUMENT, MAP, NO_TAKEOVERS, TakeoverDomain, TakeoverError, TakeoverMap

NAMES = ("region", "zone", "rack")
LABELS = DomainLabels.parse("topology.kubernetes.io/region;topology.kubernetes.io/zone;example.com/rack")


def document(takeovers: Any, **more: Any) -> dict[str, str]:
    return {DOCUMENT: json.dumps({"version": 2, MAP: takeovers, "clusters": [{"clusterID1": "c"}], **more})}


def zone(value: str) -> Segments:
    return (("region", "eu"), ("zone", value))


def test_map_in_the_configuration_or_beside_it() -> None:
    takeovers = {"s1": ["t1", "t2"], "s2": ["all"], "s3": ["t2"]}
    parsed = takeover.parse_takeover_map(document(takeovers), NAMES)
    assert parsed.to_json() == takeovers
    assert parsed == takeover.parse_takeover_map({MAP: json.dumps(takeovers)}, NAMES)
    assert parsed.entries[TakeoverDomain("s2")] == ()


@pytest.mark.parametrize("data", [{}, {"other": "x"}, {DOCUMENT: "{}"}, {DOCUMENT: '{"version": 2}'}, {MAP: "{}"}])
def test_no_map_means_no_takeovers(data: dict[str, str]) -> None:
    assert takeover.parse_takeover_map(data, NAMES) == NO_TAKEOVERS
    assert not takeover.parse_takeover_map(data, NAMES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({DOCUMENT: "{"}, "config.json is not valid JSON"),
        ({DOCUMENT: "[]"}, "must be an object"),
        ({DOCUMENT: '{"version": 3}'}, "version 3, but only version 2"),
        ({DOCUMENT: '{"version": true}'}, "version true"),
        ({MAP: "[]"}, "must be an object"),
        ({MAP: "null", DOCUMENT: "{}"}, "must be an object"),
        ({MAP: "{}"} | document({}), "both in config.json and beside it"),
        ({MAP: '{"a": ["b"], "a": ["c"]}'}, '"a" is twice in one object'),
        ({MAP: "[" * 100_000}, "nested too deeply"),
        (document({"a": "b"}), "a needs a list of domains"),
        (document({"a": []}), "a needs a list"),
        (document({"a": ["all", "b"]}), "must be the only one"),
        (document({"a": ["a"]}), "can't take over itself"),
        (document({"a": ["b", "b"]}), "the same domain twice"),
        (document({"a": [7]}), "must be the name of a domain, not 7"),
        (document({"": ["b"]}), "must be the name of a domain"),
        (document({"zone=": ["b"]}), "must be the name of a domain"),
        (document({"all": ["b"]}), 'can\'t be "all"'),
        (document({"a b": ["b"]}), "not a label value"),
        (document({"../../etc": ["b"]}), "not a label value"),
        (document({"x" * 1_000_000: ["b"]}), "x..."),
        (document({"a": ["b" * 1_000_000 + "/"]}), "b..."),
        (document({"rakc=a": ["b"]}), "not a domain label: use one of region, zone, rack"),
        (document({"a": ["b"], "zone=a": ["c"]}), "names the domain a twice"),
    ],
)
def test_invalid_maps_are_rejected_in_one_line(data: dict[str, str], message: str) -> None:
    with pytest.raises(TakeoverError) as error:
        takeover.parse_takeover_map(data, NAMES)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("takeovers", "own", "expected"),
    [
        ({"zone=a": ["zone=b"]}, zone("b"), ["zone.a"]),
        ({"topology.kubernetes.io/zone=a": ["b"]}, zone("b"), ["zone.a"]),
        ({"zone=a": ["zone=b"]}, zone("c"), []),
        ({"zone=a": ["zone=b"]}, zone("a"), []),
        ({"zone=a": ["all"]}, zone("c"), ["zone.a"]),
        ({"zone=a": ["all"]}, (), ["zone.a"]),
        ({"zone=a": ["all"]}, zone("a"), []),
        ({"zone=a": ["region=eu"]}, zone("c"), ["zone.a"]),
        ({"zone=a": ["region=eu"]}, zone("a"), []),
        ({"a": ["b"]}, zone("b"), ["region.a", "zone.a", "rack.a"]),
        ({"zone=a": ["b"], "zone=b": ["c"]}, zone("c"), ["zone.b"]),
        ({"region=us": ["region=eu"], "zone=a": ["c"]}, zone("c"), ["region.us", "zone.a"]),
    ],
)
def test_takeover_labels_of_a_node(takeovers: dict[str, list[str]], own: Segments, expected: list[str]) -> None:
    parsed = takeover.parse_takeover_map(document(takeovers), NAMES)
    reasons = takeover.taken_over_labels(parsed, own, NAMES)
    assert sorted(reasons) == sorted(f"takeover.ceph.zonewise.dev/{name}" for name in expected)
    assert all(reason.code == "TakesOver" and "takes over" in reason.sentence for reason in reasons.values())


domain = st.sampled_from("abcd")
maps = st.dictionaries(domain, st.one_of(st.just(["all"]), st.lists(domain, min_size=1, unique=True)))


@given(takeovers=maps, own=domain, volume_domain=domain)
def test_volume_accessible_from_its_domain_and_takeover_targets(
    takeovers: dict[str, list[str]], own: str, volume_domain: str
) -> None:
    """Compares the PersistentVolume's terms with the node's labels, as the scheduler does."""
    named = {f"zone={source}": targets for source, targets in takeovers.items() if source not in targets}
    parsed = takeover.parse_takeover_map(document(named), NAMES)
    labels = LABELS.advertised({"topology.kubernetes.io/zone": own})
    labels |= dict.fromkeys(takeover.taken_over_labels(parsed, (("zone", own),), NAMES), ACTIVE)
    is_accessible = any(term.items() <= labels.items() for term in accessible_topology((("zone", volume_domain),)))
    targets = named.get(f"zone={volume_domain}", [])
    assert is_accessible is (own == volume_domain or own in targets or "all" in targets)


def test_label_changes_touch_only_the_drivers_labels() -> None:
    labels = {
        "topology.kubernetes.io/zone": "b",
        "topology.ceph.zonewise.dev/zone": "a",
        "topology.ceph.zonewise.dev/rack": "r1",
        takeover_key("zone", "x"): ACTIVE,
        takeover_key("zone", "y"): ACTIVE,
        "example.com/mine": "1",
    }
    advertised = LABELS.advertised(labels)
    taken_over = [takeover_key("zone", "y"), takeover_key("zone", "z")]
    changes = takeover.label_changes(labels, advertised, taken_over)
    assert changes == {
        "topology.ceph.zonewise.dev/zone": "b",
        "topology.ceph.zonewise.dev/rack": None,
        takeover_key("zone", "x"): None,
        takeover_key("zone", "z"): ACTIVE,
    }
    after = {key: value for key, value in (labels | changes).items() if value is not None}
    assert takeover.label_changes(after, advertised, taken_over) == {}


def test_invalid_map_removes_no_takeover_label() -> None:
    labels = {takeover_key("zone", "x"): ACTIVE, "topology.ceph.zonewise.dev/zone": "b"}
    assert takeover.label_changes(labels, {"topology.ceph.zonewise.dev/zone": "b"}, None) == {}


def test_edit_keeps_the_rest_of_the_configuration() -> None:
    before = document({"zone=a": ["b"]}, more="kept")
    after = takeover.edit_config_map(before, {"zone=c": ["all"]}, ["zone=a"])
    edited = json.loads(after[DOCUMENT])
    assert edited == {"version": 2, MAP: {"zone=c": ["all"]}, "clusters": [{"clusterID1": "c"}], "more": "kept"}
    assert takeover.parse_takeover_map(after, NAMES) == TakeoverMap({TakeoverDomain("c", "zone"): ()})


@pytest.mark.parametrize("before", [{}, {MAP: "{}"}, {"other": "x"}])
def test_edit_keeps_the_location_of_the_map(before: dict[str, str]) -> None:
    after = takeover.edit_config_map(before, {"zone=c": ["zone=a"]})
    assert set(after) == ({MAP} if MAP in before else {DOCUMENT})
    assert takeover.parse_takeover_map(before | after, NAMES).to_json() == {"zone=c": ["zone=a"]}


@pytest.mark.parametrize(
    ("annotation", "expected"), [("", set()), ('[1, "a"]', {"a"}), ("{}", set()), ('["a"]', {"a"})]
)
def test_automatic_entries_from_the_annotation(annotation: str, expected: set[str]) -> None:
    assert takeover.automatic_entries({takeover.AUTOMATIC: annotation}) == expected
    assert takeover.automatic_entries({}) == frozenset()
