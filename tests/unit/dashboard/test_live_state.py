"""Subscribers of the live state: everything once, then changes; slow ones are disconnected."""

from __future__ import annotations

import msgspec

from zonewise.dashboard.decide.rows import NoticeRow
from zonewise.dashboard.live_state import MAX_QUEUED, LiveState, changed_rows


def row(trouble: str) -> NoticeRow:
    return NoticeRow(what="nodes", trouble=trouble)


def test_new_changed_and_removed_rows_are_found() -> None:
    before = {"same": row("x"), "other": row("x"), "gone": row("x")}
    after = {"same": row("x"), "other": row("y"), "new": row("z")}
    assert changed_rows(before, after) == {"other": row("y"), "new": row("z"), "gone": None}


async def test_a_subscriber_gets_everything_and_then_changes() -> None:
    state = LiveState({"source": "test"})
    state.publish({"notices": {"a": row("x")}})
    with state.subscribe() as subscriber:
        event, data = await subscriber.next()
        assert (event, msgspec.json.decode(data)["tables"]["notices"]) == (
            "all",
            {"a": {"what": "nodes", "trouble": "x"}},
        )
        state.publish({"notices": {"a": row("x")}})
        state.publish({"notices": {"a": row("y")}})
        event, data = await subscriber.next()
        assert (event, data) == ("change", b'{"notices":{"a":{"what":"nodes","trouble":"y"}}}')


async def test_a_slow_subscriber_is_disconnected() -> None:
    state = LiveState({})
    with state.subscribe() as subscriber:
        for step in range(MAX_QUEUED + 1):
            state.publish({"notices": {"a": row(str(step))}})
        assert subscriber.too_slow
