"""Who looks gets everything once, then changes only; who does not keep up is let go."""

from __future__ import annotations

import msgspec

from zonewise.dashboard.decide.rows import NoticeRow
from zonewise.dashboard.live_state import MAX_QUEUED, LiveState, changed_rows


def row(trouble: str) -> NoticeRow:
    return NoticeRow(what="nodes", trouble=trouble)


def test_changes_are_what_is_new_other_or_gone() -> None:
    before = {"same": row("x"), "other": row("x"), "gone": row("x")}
    after = {"same": row("x"), "other": row("y"), "new": row("z")}
    assert changed_rows(before, after) == {"other": row("y"), "new": row("z"), "gone": None}


async def test_a_viewer_gets_everything_and_then_changes() -> None:
    board = LiveState({"source": "test"})
    board.publish({"notices": {"a": row("x")}})
    with board.subscribe() as viewer:
        event, data = await viewer.next()
        assert (event, msgspec.json.decode(data)["tables"]["notices"]) == (
            "all",
            {"a": {"what": "nodes", "trouble": "x"}},
        )
        board.publish({"notices": {"a": row("x")}})
        board.publish({"notices": {"a": row("y")}})
        event, data = await viewer.next()
        assert (event, data) == ("change", b'{"notices":{"a":{"what":"nodes","trouble":"y"}}}')


async def test_a_viewer_that_does_not_read_is_let_go() -> None:
    board = LiveState({})
    with board.subscribe() as viewer:
        for step in range(MAX_QUEUED + 1):
            board.publish({"notices": {"a": row(str(step))}})
        assert viewer.too_slow
