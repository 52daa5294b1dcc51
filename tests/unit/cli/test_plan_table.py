"""Table of `zonewise plan`: order, limit, and layout on a narrow terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from zonewise.cli import printing
from zonewise.cli.main import cli

SHOP = str(Path(__file__).parents[3] / "docs" / "examples" / "shop.yaml")
ORDERS = {
    "name": ["shop/cart", "shop/db", "shop/web"],
    "in-zone": ["shop/cart", "shop/web", "shop/db"],
    "cost": ["shop/web", "shop/cart", "shop/db"],
}


def services(*arguments: str) -> list[str]:
    shown = CliRunner().invoke(cli, ["plan", "-f", SHOP, "--gb", "100", *arguments])
    assert shown.exit_code == 0, shown.output
    return [line.split()[0] for line in shown.output.splitlines() if line.startswith("shop/")]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_sorted_and_limited(order: str) -> None:
    assert services("--sort", order) == ORDERS[order]
    assert services("--sort", order, "--limit", "1") == ORDERS[order][:1]


def test_last_column_moves_below_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("a" * 30, "b" * 30, "why it is so, in many words that go on")
    monkeypatch.setattr(printing, "width", lambda: 120)
    assert len(list(printing.columns(("X", "Y", "WHY"), [row]))) == 2
    monkeypatch.setattr(printing, "width", lambda: 70)
    head, first, *below = printing.columns(("X", "Y", "WHY"), [row])
    assert ("WHY" in head, first.split(), [line.strip() for line in below]) == (False, list(row[:2]), [row[2]])
