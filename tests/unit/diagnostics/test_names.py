"""Lists of names in sentences."""

from __future__ import annotations

import pytest

from zonewise.diagnostics.decide.names import first_names

CASES = {
    "none": ([], ""),
    "as many as fit": (["a", "b"], "a, b"),
    "one too many": (["a", "b", "c"], "a, b and 1 more"),
}


@pytest.mark.parametrize(("names", "text"), CASES.values(), ids=CASES)
def test_first_names(names: list[str], text: str) -> None:
    assert first_names(names, 2) == text
