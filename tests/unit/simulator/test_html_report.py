"""The HTML report: well-formed, self-contained, escaped, with published figures where they differ."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence

import pytest

from zonewise.routing.algorithms import Algorithm
from zonewise.simulator.decide import html_report, plots, traces
from zonewise.simulator.decide.churn import ChurnMode, replay
from zonewise.simulator.decide.results import SCORE_BINS, AlgorithmResult, Figures, Loss, Results, ResultTable

HISTOGRAM = tuple(score % 7 for score in range(SCORE_BINS))
ROWS = (
    AlgorithmResult(
        "balanced", 72.48, 38.84, 100.0, 100.0, published=Figures(72.48, 38.84, 100.0, 100.0), histogram=HISTOGRAM
    ),
    AlgorithmResult(
        "local",
        86.71,
        84.33,
        98.25,
        63.1,
        published=Figures(86.69),
        losses=(Loss((7, 8, 10), (0, 6, 10), 63.8, 75.4, "other"),),
    ),
)


@pytest.mark.parametrize("plot", plots.PLOTS.values(), ids=plots.PLOTS)
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ()], ids=["two", "one", "none"])
def test_plots_are_well_formed_with_a_title(
    plot: Callable[[Sequence[AlgorithmResult]], str], rows: Sequence[AlgorithmResult]
) -> None:
    root = ET.fromstring(plot(rows))
    assert root.find("{http://www.w3.org/2000/svg}title").text
    numbers = re.findall(r" (?:cx|cy|x|y|width|height)=\"([^\"]+)\"", ET.tostring(root, encoding="unicode"))
    assert all(float(number) == float(number) for number in numbers), "no NaN"


def test_published_figures_are_shown_where_they_differ() -> None:
    page = html_report.html(Results((ResultTable("large", 39_273_145, ROWS),)))
    assert "86.71 <span class=differs" in page
    assert "(86.69)" in page
    assert "72.48 <span" not in page


def test_report_has_no_external_resources_and_escapes_names() -> None:
    hostile = AlgorithmResult("<script>alert(1)</script>", 1, 1, 1, 1, losses=(Loss((1,), (1,), 1, 2, "<b>"),))
    churn = [replay(traces.built_in("new-zone"), Algorithm.LOCAL, ChurnMode.LAZY)]
    page = html_report.html(Results((ResultTable("<i>mine", 1, (hostile,), about="<img>"),)), churn)
    assert not re.search(r"<(script|i|b|img)\b", page)
    assert not re.search(r"(src|href)=", page)
    assert "new-zone" in page
