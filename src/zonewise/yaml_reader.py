"""YAML of users, read by PyYAML within bounds.

PyYAML's C loader calls itself for each level of nesting until the stack overflows, and aliases of aliases make small
files large. Both are refused before it loads a text that may contain them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 200
MAX_NODES: Final = 5_000_000
"""With each alias counted as what it stands for."""

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SUSPECT: Final = re.compile(rb"^[ \t?:-]{%d}|[\s\[{,:-]&|^&" % MAX_DEPTH, re.MULTILINE)


def load_all(text: str | bytes) -> list[Any]:
    """All documents; raises `yaml.YAMLError` or `ValueError`."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH or _SUSPECT.search(data):
        _check_bounds(text)
    try:
        return list(yaml.load_all(text, Loader=_LOADER))
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None


def _check_bounds(text: str | bytes) -> None:
    sizes: dict[str, int] = {}
    anchors: list[str | None] = [None]
    totals = [0]
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
            totals.append(1)
            size = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            size = totals.pop()
            if anchor := anchors.pop():
                sizes[anchor] = size
        else:
            size = sizes.get(event.anchor or "", MAX_NODES + 1) if isinstance(event, yaml.AliasEvent) else 1
            if isinstance(event, yaml.ScalarEvent) and event.anchor:
                sizes[event.anchor] = 1
        totals[-1] += size
        if len(totals) > MAX_DEPTH:
            raise yaml.YAMLError(f"nested more than {MAX_DEPTH} levels deep")
        if totals[-1] > MAX_NODES:
            raise yaml.YAMLError("its aliases stand for too much, or for themselves")
