"""Selectors as people write them after -l."""

from __future__ import annotations

import pytest

from zonewise.topology.requirement import SelectorError
from zonewise.topology.selector_text import parse_selector

LABELS = {"app": "shop", "tier": "web", "zone": "a"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=shop", True),
        ("app==shop,tier=web", True),
        ("app = shop , tier != db", True),
        ("app!=shop", False),
        ("other!=x", True),
        ("zone in (a, b)", True),
        ("zone notin (a,b),app=shop", False),
        ("zone in (b,c),app=shop", False),
        ("tier", True),
        ("!tier", False),
        ("!other,app", True),
        ("app=", False),
    ],
)
def test_a_selector_chooses_as_kubectl_does(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["=x", "app in a", "a b c", "app=shop,", "app in (a", "app=a=b", "-x=1", "k in ()x"])
def test_what_is_no_selector_is_refused_with_its_part(text: str) -> None:
    with pytest.raises(SelectorError) as refused:
        parse_selector(text)
    assert "-l" in str(refused.value)
