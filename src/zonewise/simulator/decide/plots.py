"""SVG plots without a library or script, for light and dark mode. Pure: numbers in, text out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil
from typing import Final

from zonewise.simulator.decide.results import AlgorithmResult

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 14, 40
# Okabe and Ito's palette for colour-blind readers; dashes distinguish lines without colour.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f")
DASHES: Final = ("", "6 3", "2 2", "8 3 2 3", "12 4", "1 3", "4 4")


def score_distribution(rows: Sequence[AlgorithmResult]) -> str:
    """The distribution of the total score over the inputs, one line per algorithm."""
    plotted = [row for row in rows if row.histogram]
    first = min((next((at for at, count in enumerate(row.histogram) if count), 100) for row in plotted), default=0)
    low = max(0, first // 10 * 10)
    highest = max((max(_shares(row.histogram)) for row in plotted), default=0.01)
    frame = _Frame(low, 100, 0, highest, "total score", "share of inputs")
    lines = [
        _line([frame.at(low + score, share) for score, share in enumerate(_shares(row.histogram)[low:])], number)
        for number, row in enumerate(plotted)
    ]
    return frame.draw(
        [*lines, *_legend([row.algorithm for row in plotted])], "Distribution of total scores", percent=True
    )


def in_zone_against_overload(rows: Sequence[AlgorithmResult]) -> str:
    """Each algorithm's means: up is more local traffic, right is better balanced."""
    lowest_x = min((row.overload for row in rows), default=0)
    lowest_y = min((row.in_zone for row in rows), default=0)
    frame = _Frame(_floor(lowest_x, 100), 100, _floor(lowest_y, 100), 100, "overload score", "in-zone score")
    points = []
    for number, row in enumerate(rows):
        x, y = frame.at(row.overload, row.in_zone)
        points.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{_colour(number)}"><title>{escape(row.algorithm)}: {row.in_zone:.2f} in zone, {row.overload:.2f} overload</title></circle>'
        )
    return frame.draw([*points, *_legend([row.algorithm for row in rows])], "In-zone score against overload score")


def totals(rows: Sequence[AlgorithmResult]) -> str:
    """Mean totals as bars."""
    frame = _Frame(0, 100, 0, max(len(rows), 1), "mean total score", "")
    bars = []
    for number, row in enumerate(rows):
        x, y = frame.at(0, len(rows) - number - 0.15)
        right, _ = frame.at(max(row.total, 0), 0)
        height = (HEIGHT - TOP - BOTTOM) / len(rows) * 0.7
        bars.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{height:.1f}" fill="{_colour(number)}"/>'
            f'<text x="{right + 6:.1f}" y="{y + height / 2 + 4:.1f}">{escape(row.algorithm)} {row.total:.2f}</text>'
        )
    return frame.draw(bars, "Mean total scores", ticks_y=False)


def worst_losses(rows: Sequence[AlgorithmResult]) -> str:
    """The largest distance of each algorithm to the best one, and the input where it occurs."""
    losing = [(number, row) for number, row in enumerate(rows) if row.losses]
    most = max((row.losses[0].best - row.losses[0].total for _, row in losing), default=1.0)
    room_for_names = ceil(most * 1.6 / 5) * 5
    frame = _Frame(0, room_for_names, 0, max(len(losing), 1), "points behind the best, at the worst input", "")
    bars = []
    for position, (number, row) in enumerate(losing):
        worst = row.losses[0]
        x, y = frame.at(0, len(losing) - position - 0.15)
        right, _ = frame.at(worst.best - worst.total, 0)
        height = (HEIGHT - TOP - BOTTOM) / len(losing) * 0.7
        where = f"{' '.join(map(str, worst.nodes))} nodes, {' '.join(map(str, worst.endpoints))} endpoints"
        bars.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{height:.1f}" fill="{_colour(number)}"/>'
            f'<text x="{right + 6:.1f}" y="{y + height / 2 + 4:.1f}">{escape(row.algorithm)}: {where}</text>'
        )
    return frame.draw(bars, "Where each algorithm loses most", ticks_y=False)


PLOTS: Final[Mapping[str, Callable[[Sequence[AlgorithmResult]], str]]] = {
    "totals": totals,
    "in-zone-against-overload": in_zone_against_overload,
    "distribution": score_distribution,
    "losses": worst_losses,
}
"""Plots by file name."""


class _Frame:
    def __init__(self, low_x: float, high_x: float, low_y: float, high_y: float, label_x: str, label_y: str) -> None:
        self.x, self.y = (low_x, max(high_x, low_x + 1e-9)), (low_y, max(high_y, low_y + 1e-9))
        self.label_x, self.label_y = label_x, label_y

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def draw(self, content: Sequence[str], title: str, *, percent: bool = False, ticks_y: bool = True) -> str:
        parts = [*self._ticks_x(), *(self._ticks_y(percent=percent) if ticks_y else []), *content]
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" class="plot">'
            f"<title>{escape(title)}</title><style>{STYLE}</style>{''.join(parts)}</svg>"
        )

    def _ticks_x(self) -> list[str]:
        low, high = self.x
        marks = []
        for step in range(6):
            value = low + (high - low) * step / 5
            x, y = self.at(value, self.y[0])
            marks.append(
                f'<path class="grid" d="M{x:.1f} {TOP}V{y:.1f}"/><text class="middle" x="{x:.1f}" y="{y + 16:.1f}">{value:.3g}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        return [*marks, f'<text class="middle" x="{middle:.0f}" y="{HEIGHT - 6}">{escape(self.label_x)}</text>']

    def _ticks_y(self, *, percent: bool) -> list[str]:
        low, high = self.y
        marks = []
        for step in range(5):
            value = low + (high - low) * step / 4
            x, y = self.at(self.x[0], value)
            text = f"{value:.0%}" if percent else f"{value:.4g}"
            marks.append(
                f'<path class="grid" d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}"/><text class="end" x="{x - 6:.1f}" y="{y + 4:.1f}">{text}</text>'
            )
        middle = (TOP + HEIGHT - BOTTOM) / 2
        return [
            *marks,
            f'<text class="middle" transform="translate(12 {middle:.0f}) rotate(-90)">{escape(self.label_y)}</text>',
        ]


STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#333}.middle{text-anchor:middle}.end{text-anchor:end}"
    ".grid{stroke:#8884;fill:none}.line{fill:none;stroke-width:2}@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def _line(points: Sequence[tuple[float, float]], number: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="line" stroke="{_colour(number)}" stroke-dasharray="{DASHES[number % len(DASHES)]}" points="{path}"/>'


def _legend(names: Sequence[str]) -> list[str]:
    x = WIDTH - RIGHT + 12
    return [
        f'<path class="line" stroke="{_colour(number)}" stroke-dasharray="{DASHES[number % len(DASHES)]}" d="M{x} {TOP + 10 + number * 20}h22"/>'
        f'<text x="{x + 28}" y="{TOP + 14 + number * 20}">{escape(name)}</text>'
        for number, name in enumerate(names)
    ]


def _shares(histogram: Sequence[int]) -> list[float]:
    total = sum(histogram) or 1
    return [count / total for count in histogram]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _floor(value: float, high: float) -> float:
    return max(0.0, min(high - 10, value // 10 * 10))
