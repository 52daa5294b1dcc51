"""Delay line: every packet leaves once, in order, not before its delay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.network.delay import DelayLine

_GAPS = st.lists(st.floats(0, 1, allow_nan=False), max_size=30)


@given(gaps=_GAPS, delay=st.floats(0, 2, allow_nan=False))
def test_packets_leave_once_in_order_and_after_the_delay(gaps: list[float], delay: float) -> None:
    line, now, sent = DelayLine(delay), 0.0, []
    times: list[float] = []
    for index, gap in enumerate(gaps):
        now += gap
        times.append(now)
        line.put(bytes([index]), now)
        sent += [(now, packet) for packet in line.due(now)]
    while (due := line.next_due()) is not None:
        sent += [(due, packet) for packet in line.due(due)]
    assert [packet for _, packet in sent] == [bytes([index]) for index in range(len(gaps))]
    assert all(sent_at >= times[packet[0]] + delay for sent_at, packet in sent)


def test_empty_line_has_nothing_due() -> None:
    line = DelayLine(1)
    assert line.next_due() is None
    assert list(line.due(100)) == []
