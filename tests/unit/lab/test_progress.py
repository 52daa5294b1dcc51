import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.progress import Estimate, ProgressReporter, duration

DURATIONS = {0.4: "0 s", 40: "40 s", 89: "89 s", 95: "2 min", 600: "10 min", 3900: "1 h 5 min"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "expected"), DURATIONS.items())
def test_duration_text(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_packages_are_weighted_by_size() -> None:
    estimate = Estimate({"big": 900, "small": 50}, linking=50)
    estimate.add("small")
    assert estimate.fraction == pytest.approx(0.05)
    estimate.add("big")
    assert estimate.fraction == pytest.approx(0.95)
    assert estimate.seconds_left(95) == pytest.approx(5)


def test_no_estimate_without_progress() -> None:
    estimate = Estimate({"big": 1000, "small": 1})
    estimate.add("small")
    assert estimate.seconds_left(60) is None
    assert Estimate({}).seconds_left(60) is None


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 10**6)), st.lists(st.text(max_size=3)))
def test_fraction_grows_and_stays_below_one(weights: dict[str, int], messages: list[str]) -> None:
    estimate = Estimate(weights, linking=1)
    before = 0.0
    for message in messages:
        estimate.add(message)
        assert before <= estimate.fraction < 1
        before = estimate.fraction
    assert estimate.count <= len(weights)


def test_log_gets_a_line_every_ten_percent() -> None:
    stream = io.StringIO()
    reporter = ProgressReporter(stream, clock=lambda: 1.5)
    reporter.step("building")
    for percent in range(101):
        reporter.advance("on the way", percent / 100)
    reporter.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "  0.0 s  building"
    assert lines[1:] == [f"{percent:3d} %  on the way" for percent in range(10, 101, 10)]


def test_terminal_gets_one_updating_line() -> None:
    clock = iter(index / 10 for index in range(1000))
    stream = Terminal()
    reporter = ProgressReporter(stream, clock=lambda: next(clock))
    for percent in range(101):
        reporter.advance("on the way", percent / 100)
    reporter.close()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\033[K")
    assert 10 < stream.getvalue().count("on the way") <= 51
