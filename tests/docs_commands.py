"""The commands that the docs tell people to type: those of fenced blocks that stand below a line `<!-- run -->`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"^[ ]*<!-- run -->\n(?P<indent>[ ]*)```\w*\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


def blocks(name: str) -> list[list[str]]:
    """The commands of each block, in order: lines that begin with a dollar sign; the rest is what they print."""
    found = [match["body"].splitlines() for match in _BLOCK.finditer((ROOT / name).read_text())]
    return [[line.strip()[2:] for line in block if line.strip().startswith("$ ")] for block in found]
