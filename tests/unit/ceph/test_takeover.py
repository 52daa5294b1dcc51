"""The takeover map: read strictly, and what it means for a node."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.ceph.decide import takeover, takeover_edit
from zonewise.ceph.decide.domains import ACTIVE, DomainLabels, Segments, accessible, takeover_key
from zonewise.ceph.decide.takeover import DOCUMENT, MAP, NOTHING, TakeoverDomain, TakeoverError, TakeoverMap

NAMES = ("region", "zone", "rack")
LABELS = DomainLabels.parse("topology.kubernetes.io/region;topology.kubernetes.io/zone;example.com/rack")


def document(said: Any, **more: Any) -> dict[str, str]:
    return {DOCUMENT: json.dumps({"version": 2, MAP: said, "clusters": [{"clusterID1": "c"}], **more})}


def zone(value: str) -> Segments:
    return (("region", "eu"), ("zone", value))


def test_the_document_of_the_design_is_read() -> None:
    said = {"s1": ["t1", "t2"], "s2": ["all"], "s3": ["t2"]}
    read = takeover.read(document(said), NAMES)
    assert read.written() == said
    assert read == takeover.read({MAP: json.dumps(said)}, NAMES)
    assert read.entries[TakeoverDomain("s2")] == ()


@pytest.mark.parametrize("data", [{}, {"other": "x"}, {DOCUMENT: "{}"}, {DOCUMENT: '{"version": 2}'}, {MAP: "{}"}])
def test_nothing_said_is_no_takeover(data: dict[str, str]) -> None:
    assert takeover.read(data, NAMES) == NOTHING
    assert not takeover.read(data, NAMES)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({DOCUMENT: "{"}, "config.json is no JSON"),
        ({DOCUMENT: "[]"}, "must be an object"),
        ({DOCUMENT: '{"version": 3}'}, "version 3, and only 2"),
        ({DOCUMENT: '{"version": true}'}, "version true"),
        ({MAP: "[]"}, "must be an object"),
        ({MAP: "null", DOCUMENT: "{}"}, "must be an object"),
        ({MAP: "{}"} | document({}), "stands in config.json and beside it"),
        ({MAP: '{"a": ["b"], "a": ["c"]}'}, '"a" stands twice'),
        ({MAP: "[" * 100_000}, "no JSON"),
        (document({"a": "b"}), "a needs a list of domains"),
        (document({"a": []}), "a needs a list"),
        (document({"a": ["all", "b"]}), "says it alone"),
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
        (document({"rakc=a": ["b"]}), "no domain label; write one of region, zone, rack"),
        (document({"a": ["b"], "zone=a": ["c"]}), "names the domain a twice"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(data: dict[str, str], said: str) -> None:
    with pytest.raises(TakeoverError) as error:
        takeover.read(data, NAMES)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("said", "own", "expected"),
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
def test_what_a_node_takes_over(said: dict[str, list[str]], own: Segments, expected: list[str]) -> None:
    read = takeover.read(document(said), NAMES)
    found = takeover.adopted(read, own, NAMES)
    assert sorted(found) == sorted(f"takeover.ceph.zonewise.dev/{name}" for name in expected)
    assert all(reason.code == "TakesOver" and "takes over" in reason.sentence for reason in found.values())


domain = st.sampled_from("abcd")
maps = st.dictionaries(domain, st.one_of(st.just(["all"]), st.lists(domain, min_size=1, unique=True)))


@given(said=maps, own=domain, of=domain)
def test_a_node_reaches_a_volume_by_its_domain_or_by_an_entry_that_names_both(
    said: dict[str, list[str]], own: str, of: str
) -> None:
    """The PersistentVolume's terms against the labels that the map makes, as a scheduler compares them."""
    named = {f"zone={source}": targets for source, targets in said.items() if source not in targets}
    read = takeover.read(document(named), NAMES)
    labels = LABELS.advertised({"topology.kubernetes.io/zone": own})
    labels |= dict.fromkeys(takeover.adopted(read, (("zone", own),), NAMES), ACTIVE)
    reached = any(term.items() <= labels.items() for term in accessible((("zone", of),)))
    targets = named.get(f"zone={of}", [])
    assert reached is (own == of or own in targets or "all" in targets)


def test_labels_follow_and_others_stay() -> None:
    labels = {
        "topology.kubernetes.io/zone": "b",
        "topology.ceph.zonewise.dev/zone": "a",
        "topology.ceph.zonewise.dev/rack": "r1",
        takeover_key("zone", "x"): ACTIVE,
        takeover_key("zone", "y"): ACTIVE,
        "example.com/mine": "1",
    }
    advertised = LABELS.advertised(labels)
    wanted = [takeover_key("zone", "y"), takeover_key("zone", "z")]
    changes = takeover.label_changes(labels, advertised, wanted)
    assert changes == {
        "topology.ceph.zonewise.dev/zone": "b",
        "topology.ceph.zonewise.dev/rack": None,
        takeover_key("zone", "x"): None,
        takeover_key("zone", "z"): ACTIVE,
    }
    after = {key: value for key, value in (labels | changes).items() if value is not None}
    assert takeover.label_changes(after, advertised, wanted) == {}


def test_a_map_that_cant_be_read_gives_nothing_back() -> None:
    labels = {takeover_key("zone", "x"): ACTIVE, "topology.ceph.zonewise.dev/zone": "b"}
    assert takeover.label_changes(labels, {"topology.ceph.zonewise.dev/zone": "b"}, None) == {}


def test_an_edit_leaves_the_rest_of_the_document() -> None:
    before = document({"zone=a": ["b"]}, more="kept")
    after = takeover_edit.edited(before, {"zone=c": ["all"]}, ["zone=a"])
    read = json.loads(after[DOCUMENT])
    assert read == {"version": 2, MAP: {"zone=c": ["all"]}, "clusters": [{"clusterID1": "c"}], "more": "kept"}
    assert takeover.read(after, NAMES) == TakeoverMap({TakeoverDomain("c", "zone"): ()})


@pytest.mark.parametrize("before", [{}, {MAP: "{}"}, {"other": "x"}])
def test_an_edit_goes_where_the_map_is(before: dict[str, str]) -> None:
    after = takeover_edit.edited(before, {"zone=c": ["zone=a"]})
    assert set(after) == ({MAP} if MAP in before else {DOCUMENT})
    assert takeover.read(before | after, NAMES).written() == {"zone=c": ["zone=a"]}


@pytest.mark.parametrize(("said", "found"), [("", set()), ('[1, "a"]', {"a"}), ("{}", set()), ('["a"]', {"a"})])
def test_entries_of_our_own_are_known_by_an_annotation(said: str, found: set[str]) -> None:
    assert takeover_edit.automatic({takeover_edit.AUTOMATIC: said}) == found
    assert takeover_edit.automatic({}) == frozenset()
