"""What-if requests: the answer, and the equivalent zonewise plan command."""

from __future__ import annotations

import msgspec
import pytest

from support.planning.cluster import make_snapshot
from zonewise.dashboard.decide.whatif_api import WhatIfQuestion, answer_question, plan_command
from zonewise.errors import ZonewiseError
from zonewise.routing import HintsForm

EVEN = {"a": 4, "b": 4, "c": 4}


def question_from(text: str) -> WhatIfQuestion:
    return msgspec.json.decode(text, type=WhatIfQuestion)


def test_several_changes_are_combined() -> None:
    question = question_from(
        '{"changes": [{"type": "set", "policy": "same-zone", "value": "Prefer"}, {"type": "lose-zone", "zone": "a"},'
        ' {"type": "add-nodes", "zone": "b", "number": 2}, {"type": "replicas", "service": "shop", "number": 9}],'
        ' "selector": "app=shop", "gb": 1000, "price": 0.01}'
    )
    answer = answer_question(question, make_snapshot(shop=EVEN, bank=EVEN), HintsForm.STABLE)
    assert [row.key.name for row in answer.rows] == ["shop"]
    assert (answer.today.services, answer.planned.endpoints) == (1, 9)
    assert answer.today.cost == pytest.approx(1000 * 2 / 3 * 0.01)
    assert answer.command == (
        "zonewise plan --set same-zone=Prefer --lose-zone a --add-nodes b=2 --replicas shop=9 -l app=shop --gb 1000 --price 0.01"
    )


def test_changes_apply_in_the_order_of_the_command() -> None:
    """Scaling comes after the lost zone; in the order of the request the lost zone would take endpoints along."""
    question = question_from(
        '{"changes": [{"type": "replicas", "service": "shop", "number": 9}, {"type": "lose-zone", "zone": "a"}]}'
    )
    answer = answer_question(question, make_snapshot(shop=EVEN), HintsForm.STRICT)
    assert answer.command == "zonewise plan --lose-zone a --replicas shop=9 --hints strict"
    assert (answer.changes, answer.planned.endpoints) == (("zone a lost (2 nodes)", "default/shop scaled to 9"), 9)


def test_the_command_of_a_dump_reads_it() -> None:
    question = question_from('{"changes": [{"type": "lose-zone", "zone": "a"}]}')
    answer = answer_question(question, make_snapshot(shop=EVEN), HintsForm.STABLE, "my dump.yaml")
    assert answer.command == "zonewise plan -f 'my dump.yaml' --lose-zone a"


def test_large_numbers_are_written_out() -> None:
    question = WhatIfQuestion(gb=12_500_000.5, price=0.00001)
    assert plan_command(question, HintsForm.STABLE) == "zonewise plan --gb 12500000.5 --price 0.00001"


def test_one_service_is_chosen_by_name() -> None:
    question = question_from(
        '{"changes": [{"type": "set", "policy": "same-zone", "value": "Prefer"}], "service": "default/shop"}'
    )
    answer = answer_question(question, make_snapshot(shop=EVEN, bank=EVEN), HintsForm.STABLE)
    assert ([row.key.name for row in answer.rows], answer.command) == (["shop"], "")


def test_a_command_is_safe_to_paste() -> None:
    question = WhatIfQuestion(namespace="$(rm -rf x)", selector="a='b'")
    assert plan_command(question, HintsForm.STABLE) == """zonewise plan -n '$(rm -rf x)' -l 'a='"'"'b'"'"''"""


@pytest.mark.parametrize(
    "text",
    [
        '{"changes": [{"type": "lose-zone", "zone": "nowhere"}]}',
        '{"changes": [{"type": "replicas", "service": "nothing", "number": 1}]}',
        '{"changes": [], "selector": "=="}',
    ],
)
def test_missing_objects_are_errors(text: str) -> None:
    with pytest.raises(ZonewiseError):
        answer_question(question_from(text), make_snapshot(shop=EVEN), HintsForm.STABLE)


@pytest.mark.parametrize("text", ['{"changes": [{"type": "delete"}]}', '{"gb": -1}', '{"shell": "x"}', "[]"])
def test_malformed_questions_are_rejected(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        question_from(text)
