"""The table of who answers whom, as people read it."""

from __future__ import annotations

from collections import Counter

import msgspec

from zonewise.lab.demo import zone_answers
from zonewise.lab.demo.shop import UNANSWERED


def test_rows_are_client_zones_and_columns_server_zones() -> None:
    counted = {"zone-a": Counter({"zone-a": 3, "zone-b": 1}), "zone-b": Counter({"zone-b": 8})}
    assert zone_answers.complete(counted)
    assert zone_answers.table(counted, ["zone-a", "zone-b"]).splitlines() == [
        "asked from      zone-a      zone-b  same zone",
        "zone-a            75 %        25 %       75 %",
        "zone-b             0 %       100 %      100 %",
    ]


def test_programs_get_the_counts() -> None:
    counted = {"a": Counter({"a": 3, "b": 1}), "b": Counter({UNANSWERED: 2})}
    assert list(msgspec.to_builtins(zone_answers.account(counted, ["a", "b"]))) == [
        {"zone": "a", "answers": {"a": 3, "b": 1}, "unanswered": 0, "sameZone": 0.75},
        {"zone": "b", "answers": {"a": 0, "b": 0}, "unanswered": 2, "sameZone": 0.0},
    ]


def test_questions_without_an_answer_have_a_column_when_there_are_any() -> None:
    counted = {"a": Counter({"a": 1, UNANSWERED: 1}), "b": Counter[str]()}
    assert not zone_answers.complete(counted)
    assert zone_answers.table(counted, ["a", "b"]).splitlines() == [
        "asked from           a           b  unanswered  same zone",
        "a                 50 %         0 %        50 %       50 %",
        "b                  0 %         0 %         0 %        0 %",
    ]
