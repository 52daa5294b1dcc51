"""Selectors: matching as the scheduler matches, problems that say what to write, reasons that name the requirement."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.topology.labels import value_problem
from zonewise.topology.requirement import Operator, Requirement, SelectorError
from zonewise.topology.selector import (
    LabelSelector,
    NodeSelector,
    NodeSelectorSpec,
    NodeSelectorTerm,
    NodeSelectorTermSpec,
)

LABELS = {"zone": "a", "cores": "8", "empty": "", "word": "eight", "padded": "007", "huge": "9" * 30}


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"matchExpressions": list(expressions), "matchFields": list(fields)}


MATCHES = {
    "In": (requirement("zone", "In", "b", "a"), True),
    "In, another value": (requirement("zone", "In", "b"), False),
    "In, key absent": (requirement("rack", "In", "a"), False),
    "In, the empty value": (requirement("empty", "In", ""), True),
    "In, the empty value is not absence": (requirement("rack", "In", ""), False),
    "NotIn": (requirement("zone", "NotIn", "b"), True),
    "NotIn, the value": (requirement("zone", "NotIn", "b", "a"), False),
    "NotIn, key absent": (requirement("rack", "NotIn", "a"), True),
    "Exists": (requirement("zone", "Exists"), True),
    "Exists with an empty value": (requirement("empty", "Exists"), True),
    "Exists, key absent": (requirement("rack", "Exists"), False),
    "DoesNotExist": (requirement("rack", "DoesNotExist"), True),
    "DoesNotExist, key present": (requirement("empty", "DoesNotExist"), False),
    "Gt": (requirement("cores", "Gt", "7"), True),
    "Gt, equal": (requirement("cores", "Gt", "8"), False),
    "Gt compares numbers, not text": (requirement("cores", "Gt", "10"), False),
    "Gt, leading zeros": (requirement("padded", "Gt", "06"), True),
    "Gt, key absent": (requirement("rack", "Gt", "1"), False),
    "Gt, a word": (requirement("word", "Gt", "1"), False),
    "Gt, empty": (requirement("empty", "Gt", "1"), False),
    "Gt, beyond 64 bits": (requirement("huge", "Gt", "1"), False),
    "Lt": (requirement("cores", "Lt", "10"), True),
    "Lt, equal": (requirement("cores", "Lt", "8"), False),
    "Lt, key absent": (requirement("rack", "Lt", "1"), False),
    "Lt, a word": (requirement("word", "Lt", "1"), False),
}


@pytest.mark.parametrize(("written", "matched"), MATCHES.values(), ids=MATCHES)
def test_requirement(written: dict[str, Any], matched: bool) -> None:
    parsed = NodeSelectorTerm.parse(term(written))
    assert parsed.matches(LABELS, "n1") is matched
    match = parsed.explain(LABELS, "n1")
    assert bool(match) is matched
    assert match.reason.code == ("TermMatches" if matched else "RequirementFails")
    assert f"{written['key']} {written['operator']}" in match.reason.sentence


NAME_IS_N1 = requirement("metadata.name", "In", "n1")
NAME_IS_NOT_N1 = requirement("metadata.name", "NotIn", "n1")

TERMS = {
    "no requirement": (term(), False),
    "null": (None, False),
    "null lists": ({"matchExpressions": None, "matchFields": None}, False),
    "all hold": (term(requirement("zone", "In", "a"), requirement("cores", "Gt", "1")), True),
    "one fails": (term(requirement("zone", "In", "a"), requirement("cores", "Gt", "9")), False),
    "name": (term(fields=(NAME_IS_N1,)), True),
    "not the name": (term(fields=(NAME_IS_NOT_N1,)), False),
    "label and name": (term(requirement("zone", "Exists"), fields=(NAME_IS_N1,)), True),
    "label holds, name fails": (term(requirement("zone", "Exists"), fields=(NAME_IS_NOT_N1,)), False),
    "label fails, name holds": (term(requirement("rack", "Exists"), fields=(NAME_IS_N1,)), False),
}


@pytest.mark.parametrize(("written", "matched"), TERMS.values(), ids=TERMS)
def test_term(written: dict[str, Any] | None, matched: bool) -> None:
    parsed = NodeSelectorTerm.parse(written)
    assert parsed.matches(LABELS, "n1") is matched
    assert bool(parsed.explain(LABELS, "n1")) is matched


def test_an_unnamed_node_is_not_asked_for_its_name() -> None:
    assert NodeSelectorTerm.parse(term(fields=(NAME_IS_N1,))).matches(LABELS)


def test_the_reason_names_the_field_that_failed() -> None:
    match = NodeSelectorTerm.parse(term(fields=(NAME_IS_NOT_N1,))).explain({}, "n1")
    assert match.reason.sentence == "metadata.name NotIn [n1] does not hold: metadata.name is 'n1'"
    assert match.reason.facts == {"key": "metadata.name", "found": "n1", "requirement": "metadata.name NotIn [n1]"}


PROBLEMS = {
    "unknown operator": (requirement("zone", "Equals", "a"), "operator: 'Equals' is not an operator here; write one of In, NotIn,"),
    "operator in lower case": (requirement("zone", "in", "a"), "operator: 'in' is not"),
    "no operator": ({"key": "zone"}, "operator: '' is not"),
    "In without values": (requirement("zone", "In"), "values: is empty; In needs at least one value"),
    "NotIn without values": ({"key": "zone", "operator": "NotIn"}, "values: is empty; NotIn needs"),
    "Exists with values": (requirement("zone", "Exists", "a"), "values: has 1 values; Exists takes none"),
    "DoesNotExist with values": (requirement("zone", "DoesNotExist", "a"), "values: has 1 values; DoesNotExist takes none"),
    "Gt without a value": (requirement("zone", "Gt"), "values: has 0 values; Gt needs exactly one integer"),
    "Lt with two": (requirement("zone", "Lt", "1", "2"), "values: has 2 values; Lt needs exactly one integer"),
    "Gt with a word": (requirement("zone", "Gt", "x"), "values: 'x' is not an integer"),
    "Gt beyond 64 bits": (requirement("zone", "Gt", "9223372036854775808"), "is not an integer"),
    "Gt with an underscore": (requirement("zone", "Gt", "1_0"), "is not an integer"),
    "bad key": (requirement("-", "Exists"), "key: '-' is not a label name; write"),
    "bad prefix": (requirement("Example.com/a", "Exists"), "key: 'Example.com' is not a DNS name"),
    "bad value": (requirement("zone", "In", "a", "b c"), "values[1]: 'b c' is not a label value"),
}  # fmt: skip


@pytest.mark.parametrize(("written", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_label_problem(written: dict[str, Any], problem: str) -> None:
    with pytest.raises(SelectorError) as caught:
        NodeSelectorTerm.parse(term(written))
    assert f"nodeSelectorTerm.matchExpressions[0].{problem}".split("[0].")[0] in str(caught.value)
    assert problem in str(caught.value)


FIELD_PROBLEMS = {
    "unknown field": (requirement("metadata.uid", "In", "x"), "key: 'metadata.uid' is not a field to select nodes by; write metadata.name"),
    "no values": (requirement("metadata.name", "In"), "values: has 0 values; write exactly one node name"),
    "two values": (requirement("metadata.name", "In", "a", "b"), "values: has 2 values; write exactly one node name"),
    "Exists": (requirement("metadata.name", "Exists", "a"), "operator: 'Exists' is not an operator here; write one of In, NotIn"),
    "not a node name": (requirement("metadata.name", "NotIn", "A_b"), "values[0]: 'A_b' is not a node name"),
}  # fmt: skip


@pytest.mark.parametrize(("written", "problem"), FIELD_PROBLEMS.values(), ids=FIELD_PROBLEMS)
def test_field_problem(written: dict[str, Any], problem: str) -> None:
    with pytest.raises(SelectorError) as caught:
        NodeSelectorTerm.parse(term(fields=(written,)), "spec.term")
    assert f"spec.term.matchFields[0].{problem}" in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(SelectorError) as caught:
        NodeSelector.parse({"nodeSelectorTerms": [term(requirement("-", "Is", " ")), term(requirement("a", "In"))]})
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator",
        "nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key",
        "nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values[0]",
        "nodeSelector.nodeSelectorTerms[1].matchExpressions[0].values",
    ]


@pytest.mark.parametrize("written", [{"matchExpressions": "zone"}, {"matchFields": [{"key": 1}]}])
def test_the_wrong_json_type_is_a_problem(written: dict[str, Any]) -> None:
    with pytest.raises(SelectorError, match="nodeSelectorTerm: Expected"):
        NodeSelectorTerm.parse(written)


def test_views_are_read_like_json() -> None:
    spec = NodeSelectorSpec(node_selector_terms=(NodeSelectorTermSpec(), None))
    assert NodeSelector.parse(spec).terms == (NodeSelectorTerm(), NodeSelectorTerm())


BROKEN = term(requirement("zone", "Gt", "many"))

SELECTORS = {
    "no terms": ([], False),
    "one matches": ([term(requirement("zone", "In", "b")), term(requirement("zone", "In", "a"))], True),
    "none matches": ([term(requirement("zone", "In", "b")), term(requirement("zone", "In", "c"))], False),
    "empty terms only": ([term(), None], False),
    "an empty term beside a matching one": ([term(), term(requirement("zone", "Exists"))], True),
    "an unreadable term beside a matching one": ([BROKEN, term(requirement("zone", "Exists"))], True),
    "an unreadable term alone": ([BROKEN], False),
}


@pytest.mark.parametrize(("terms", "matched"), SELECTORS.values(), ids=SELECTORS)
def test_node_selector_as_the_scheduler_reads_it(terms: list[dict[str, Any] | None], matched: bool) -> None:
    selector = NodeSelector.parse_as_scheduler({"nodeSelectorTerms": terms})
    assert selector.matches(LABELS, "n1") is matched
    assert bool(selector.explain(LABELS, "n1")) is matched


def test_an_absent_node_selector_matches_no_node() -> None:
    match = NodeSelector.parse(None).explain(LABELS, "n1")
    assert not match
    assert match.reason.sentence == "there is no term, so no node matches"


def test_no_match_is_explained_term_by_term() -> None:
    selector = NodeSelector.parse_as_scheduler(
        {"nodeSelectorTerms": [BROKEN, term(), term(requirement("rack", "Exists"))]}
    )
    sentence = selector.explain(LABELS, "n1").reason.sentence
    assert "'many' is not an integer" in sentence
    assert "term 0: a term without requirements" in sentence
    assert "term 1: rack Exists does not hold: rack is not set" in sentence


LABEL_SELECTORS = {
    "absent": (None, False),
    "empty": ({}, True),
    "null lists": ({"matchLabels": None, "matchExpressions": None}, True),
    "label": ({"matchLabels": {"zone": "a"}}, True),
    "label, other value": ({"matchLabels": {"zone": "b"}}, False),
    "label, absent": ({"matchLabels": {"rack": ""}}, False),
    "all of them": ({"matchLabels": {"zone": "a"}, "matchExpressions": [requirement("cores", "Exists")]}, True),
    "one fails": ({"matchLabels": {"zone": "a"}, "matchExpressions": [requirement("cores", "NotIn", "8")]}, False),
}


@pytest.mark.parametrize(("written", "matched"), LABEL_SELECTORS.values(), ids=LABEL_SELECTORS)
def test_label_selector(written: dict[str, Any] | None, matched: bool) -> None:
    selector = LabelSelector.parse(written)
    assert selector.matches(LABELS) is matched
    match = selector.explain(LABELS)
    assert bool(match) is matched
    assert match.reason.sentence


def test_label_selectors_know_no_comparison() -> None:
    with pytest.raises(SelectorError) as caught:
        LabelSelector.parse({"matchLabels": {"a": "b c"}, "matchExpressions": [requirement("cores", "Gt", "1")]})
    assert caught.value.problems == (
        f"selector.matchLabels[a].values[0]: {value_problem('b c')}",
        "selector.matchExpressions[0].operator: 'Gt' is not an operator here; write one of In, NotIn, Exists, DoesNotExist",
    )


LABEL_SETS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "0", "5", "10", "x"]))
VALUES = st.sampled_from(["0", "5", "10"])


@given(LABEL_SETS, st.sampled_from("abc"), st.lists(VALUES, min_size=1, max_size=3).map(tuple))
def test_opposite_operators_disagree(labels: dict[str, str], key: str, values: tuple[str, ...]) -> None:
    for operator, opposite in ((Operator.IN, Operator.NOT_IN), (Operator.EXISTS, Operator.DOES_NOT_EXIST)):
        assert Requirement(key, operator, values).matches(labels) is not Requirement(key, opposite, values).matches(
            labels
        )


@given(LABEL_SETS, st.sampled_from("abc"), VALUES)
def test_a_number_is_less_equal_or_greater(labels: dict[str, str], key: str, value: str) -> None:
    holding = [
        Requirement(key, operator, (value,)).matches(labels) for operator in (Operator.GT, Operator.LT, Operator.IN)
    ]
    assert sum(holding) == (1 if labels.get(key, "").isdigit() else 0)


ANY_REQUIREMENT = st.fixed_dictionaries(
    {"key": st.sampled_from(["a", "b", "-"]), "operator": st.sampled_from([*Operator, "Is"])},
    optional={"values": st.none() | st.lists(st.sampled_from(["", "0", "x", "-1"]), max_size=2)},
)
ANY_TERM = st.none() | st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.none() | st.lists(ANY_REQUIREMENT, max_size=3)}
)


@given(st.lists(ANY_TERM, max_size=3), LABEL_SETS)
def test_explaining_and_matching_agree(terms: list[dict[str, Any] | None], labels: dict[str, str]) -> None:
    selector = NodeSelector.parse_as_scheduler({"nodeSelectorTerms": terms})
    assert bool(selector.explain(labels, "n1")) is selector.matches(labels, "n1")
    assert len(selector.terms) <= len(terms)
    assert bool(selector.problems) is (len(selector.terms) < len(terms))
