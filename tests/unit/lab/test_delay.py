"""The delay line as a queue: every packet once, in order, not before its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.network.delay import DelayLine

_GAPS = st.lists(st.floats(0, 1, allow_nan=False), max_size=30)


@given(gaps=_GAPS, delay=st.floats(0, 2, allow_nan=False))
def test_packets_come_out_once_in_order_and_on_time(gaps: list[float], delay: float) -> None:
    line, now, out = DelayLine(delay), 0.0, []
    times: list[float] = []
    for index, gap in enumerate(gaps):
        now += gap
        times.append(now)
        line.put(bytes([index]), now)
        out += [(now, packet) for packet in line.due(now)]
    while (due := line.next_due()) is not None:
        out += [(due, packet) for packet in line.due(due)]
    assert [packet for _, packet in out] == [bytes([index]) for index in range(len(gaps))]
    assert all(left >= times[packet[0]] + delay for left, packet in out)


def test_nothing_waits_in_an_empty_line() -> None:
    line = DelayLine(1)
    assert line.next_due() is None
    assert list(line.due(100)) == []
