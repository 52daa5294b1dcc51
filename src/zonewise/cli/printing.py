"""Output of commands: JSON and YAML, and text in columns, coloured on a terminal and wrapped to its width.

Without a terminal, lines are not wrapped and have no colours (click removes them).
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_GAP: Final = 3
_NARROWEST: Final = 30


def output_option(*formats: str) -> Callable[[F], F]:
    """`-o`, with the first format as the default."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Output format."
    )


class Cell(NamedTuple):
    """`style` is a colour, `dim` or `bold`."""

    text: str
    style: str = ""


def echo_data(value: Any, form: str) -> None:
    """As JSON or YAML, with the field names of the schema."""
    import msgspec

    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return
    import yaml

    click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True), nl=False)


def width() -> int | None:
    """Width of the terminal; None without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def styled(text: str, style: str) -> str:
    match style:
        case _ if not style or not text:
            return text
        case "bold":
            return click.style(text, bold=True)
        case "dim":
            return click.style(text, dim=True)
        case colour:
            return click.style(text, fg=colour)


def labelled(label: str, text: str, mark: str = "", style: str = "") -> Iterator[str]:
    """A line after a label, or after a mark below the label of an earlier line; wrapped with a hanging indent."""
    before = f"{label:<12}" if label else " " * 12
    marked = f"{mark} " if mark else ""
    lines = wrapped(text, len(before) + len(marked))
    yield f"{before}{styled(mark, style)}{' ' if mark else ''}{lines[0]}"
    yield from (f"{' ' * (12 + len(marked))}{line}" for line in lines[1:])


def wrapped(text: str, indent: int = 0) -> list[str]:
    wide = width()
    if wide is None or len(text) + indent <= wide:
        return [text]
    return textwrap.wrap(text, max(_NARROWEST, wide - indent), break_long_words=False) or [text]


def columns(header: Sequence[str], rows: Iterable[Sequence[str | Cell]], right: Sequence[str] = ()) -> Iterator[str]:
    """A table whose last column is wrapped, or moved below the others if the terminal is too narrow. Columns in `right`
    are aligned to the right.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[index].text) for row in cells)) for index, name in enumerate(header)]
    to_right = [name in right for name in header]
    indent = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    wide = width()
    below = wide is not None and len(header) > 1 and indent + min(widths[-1], _NARROWEST) > wide
    shown = slice(-1 if below else None)
    if any(header):
        yield _line([Cell(name, "bold") for name in header[shown]], widths[shown], to_right[shown])
    for row in cells:
        if below:
            if any(cell.text for cell in row[:-1]):
                yield _line(row[:-1], widths[:-1], to_right[:-1])
            yield from (f"    {styled(line, row[-1].style)}" for line in wrapped(row[-1].text, 4) if line)
            continue
        first, *rest = wrapped(row[-1].text, indent)
        yield _line([*row[:-1], Cell(first, row[-1].style)], widths, to_right)
        yield from (f"{' ' * indent}{styled(line, row[-1].style)}" for line in rest)


def _line(cells: Sequence[Cell], widths: Sequence[int], to_right: Sequence[bool]) -> str:
    """Without trailing blanks."""
    parts = []
    for index, (cell, wide, right) in enumerate(zip(cells, widths, to_right, strict=True)):
        blank = " " * (wide - len(cell.text))
        text = styled(cell.text, cell.style)
        last = index == len(cells) - 1
        parts.append(f"{blank}{text}" if right else text if last else f"{text}{blank}")
    return (" " * _GAP).join(parts).rstrip()


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def count(number: int, noun: str, many: str = "") -> str:
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"


def size(amount: float) -> str:
    """Bytes with a decimal unit, as providers bill them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("the last unit takes all")
