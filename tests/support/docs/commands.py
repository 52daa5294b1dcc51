"""Commands in the docs. A marker above the fence of each block says which test runs it:

<!-- run -->                in the lab of `make up`, after the blocks before it
<!-- run: dump -->          without a cluster; the output must match the page
<!-- not run: because -->   no test, and why
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
_COMMAND = re.compile(r"(\$ |(zonewise|kubectl|make|dig|helm|podman|python|curl|export|alias|source|eval|cat|kill)\b)")
_MARKER = re.compile(r"<!-- (?P<marker>run(: \w+)?|not run: .+) -->")
GENERATED = "reference.md"


class Exchange(NamedTuple):
    """A command and the lines that the page shows below it."""

    command: str
    shown: tuple[str, ...]


class Block(NamedTuple):
    location: str
    """File and line."""
    marker: str
    """Empty if there is none."""
    exchanges: tuple[Exchange, ...]

    @property
    def commands(self) -> list[str]:
        return [exchange.command for exchange in self.exchanges]


def pages() -> list[str]:
    names = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    return ["README.md", *(f"docs/{name}" for name in names if name != GENERATED)]


def blocks(page: str, marker: str = "") -> list[Block]:
    """Blocks with commands, in order; only those with `marker`, if given."""
    lines = (ROOT / page).read_text().splitlines()
    parsed = []
    opened = 0
    for number, line in enumerate(lines):
        if not line.strip().startswith("```"):
            continue
        if not opened:
            opened = number
            continue
        body, match = lines[opened + 1 : number], _MARKER.fullmatch(lines[opened - 1].strip())
        indent = len(lines[opened]) - len(lines[opened].lstrip())
        if any(_COMMAND.match(text.strip()) for text in body):
            exchanges = tuple(_exchanges([text[indent:] for text in body]))
            parsed.append(Block(f"{page}:{opened + 1}", match["marker"] if match else "", exchanges))
        opened = 0
    return [block for block in parsed if marker in {"", block.marker}]


def _exchanges(body: list[str]) -> list[Exchange]:
    """A line after `$ ` is a command, and the lines after it are its output. Without any `$ `, all lines are commands."""
    if not any(line.startswith("$ ") for line in body):
        return [Exchange("\n".join(body), ())]
    starts = [number for number, line in enumerate(body) if line.startswith("$ ")] + [len(body)]
    return [Exchange(body[start][2:], tuple(body[start + 1 : end])) for start, end in itertools.pairwise(starts)]
