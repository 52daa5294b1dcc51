"""The commands that the docs tell people to type. Above the fence of every such block stands who tries it:

<!-- run -->                in the lab of `make up`, after the blocks before it
<!-- run: dump -->          with nothing but this repository; what it prints is what the page shows
<!-- not run: because -->   nobody, and why
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
_COMMAND = re.compile(r"(\$ |(zonewise|kubectl|make|dig|helm|podman|python|curl|export|alias|source|eval|cat|kill)\b)")
_MARKER = re.compile(r"<!-- (?P<how>run(: \w+)?|not run: .+) -->")
WRITTEN_BY_CODE = "reference.md"


class Exchange(NamedTuple):
    """A command and the lines that the page shows below it."""

    command: str
    shown: tuple[str, ...]


class Block(NamedTuple):
    place: str
    """File and line."""
    how: str
    """What its marker says; empty where there is none."""
    exchanges: tuple[Exchange, ...]

    @property
    def commands(self) -> list[str]:
        return [each.command for each in self.exchanges]


def pages() -> list[str]:
    found = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    return ["README.md", *(f"docs/{name}" for name in found if name != WRITTEN_BY_CODE)]


def blocks(page: str, how: str = "") -> list[Block]:
    """Those with commands, in order; only those with such a marker, if one is named."""
    lines = (ROOT / page).read_text().splitlines()
    found = []
    opened = 0
    for number, line in enumerate(lines):
        if not line.strip().startswith("```"):
            continue
        if not opened:
            opened = number
            continue
        body, marker = lines[opened + 1 : number], _MARKER.fullmatch(lines[opened - 1].strip())
        indent = len(lines[opened]) - len(lines[opened].lstrip())
        if any(_COMMAND.match(each.strip()) for each in body):
            exchanges = tuple(_exchanges([each[indent:] for each in body]))
            found.append(Block(f"{page}:{opened + 1}", marker["how"] if marker else "", exchanges))
        opened = 0
    return [block for block in found if how in {"", block.how}]


def _exchanges(body: list[str]) -> list[Exchange]:
    """With dollar signs: what follows one is typed and what follows that is shown. Without any, all is typed."""
    if not any(line.startswith("$ ") for line in body):
        return [Exchange("\n".join(body), ())]
    starts = [number for number, line in enumerate(body) if line.startswith("$ ")] + [len(body)]
    return [Exchange(body[start][2:], tuple(body[start + 1 : end])) for start, end in itertools.pairwise(starts)]
