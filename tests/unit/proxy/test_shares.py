"""Slots: exact for small ratios, close otherwise, and stable over changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zonewise.proxy.decide.shares import MAX_SLOTS, assign_slots, count_slots


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        pytest.param({}, {}, id="no targets"),
        pytest.param({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, id="even"),
        pytest.param({"a": 0.3, "b": 0.3}, {"a": 1, "b": 1}, id="even, whatever the weight"),
        pytest.param({"a": 1.0, "b": 0.5}, {"a": 2, "b": 1}, id="half"),
        pytest.param({"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1}, {"a": 7, "b": 1, "c": 1, "d": 1}, id="tenths"),
        pytest.param({"a": 1.0, "b": 1 / 3}, {"a": 3, "b": 1}, id="a third"),
        pytest.param({"a": 1.0, "b": 0.0}, {"a": 1}, id="no share, no slot"),
    ],
)
def test_small_ratios_become_exact_slot_counts(shares: dict[str, float], counts: dict[str, int]) -> None:
    assert count_slots(shares) == counts


@given(st.dictionaries(st.integers(), st.floats(0.01, 100.0), min_size=1, max_size=30))
@example({0: 0.5, 1: 0.01171875, 2: 29.5, 3: 0.015625})
@example({target: 0.05 if target < 1021 else 0.1 for target in range(1024)})
def test_slots_are_in_proportion_to_shares(shares: dict[int, float]) -> None:
    counts = count_slots(shares)
    total, total_share = sum(counts.values()), sum(shares.values())
    assert counts.keys() == shares.keys()
    assert total <= MAX_SLOTS
    for target, count in counts.items():
        assert abs(count / total - shares[target] / total_share) < 0.002 + len(shares) / MAX_SLOTS


@given(st.lists(st.integers(0, 20), unique=True, max_size=20), st.lists(st.integers(0, 20), unique=True, max_size=20))
def test_remaining_targets_keep_their_slots(before: list[int], after: list[int]) -> None:
    old = assign_slots(dict.fromkeys(before, 1))
    new = assign_slots(dict.fromkeys(after, 1), old)
    assert Counter(new) == Counter(after)
    for index, target in enumerate(old[: len(new)]):
        if target in after:
            assert new[index] == target


def test_replaced_target_changes_only_its_own_slots() -> None:
    old = assign_slots(dict.fromkeys("abcd", 16))
    new = assign_slots(dict.fromkeys("abce", 16), old)
    assert sum(before != after for before, after in zip(old, new, strict=True)) == 16
