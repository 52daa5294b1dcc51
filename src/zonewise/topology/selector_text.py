"""Label selectors as kubectl's `-l` takes them: `app=shop,tier!=test,zone in (a, b),!old`. Pure.

A wrong one is refused with the part that can't be read. As in the API, `!=` and `notin` also match what lacks the key.
"""

from __future__ import annotations

import re
from typing import Any, Final

from zonewise.topology.requirement import SelectorError
from zonewise.topology.selector import LabelSelector

_COMMA_OUTSIDE: Final = re.compile(r",(?![^(]*\))")
_EQUALITY: Final = re.compile(r"(?P<key>[^\s!=]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s=]*)")
_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_PRESENCE: Final = re.compile(r"(?P<absent>!?)\s*(?P<key>[^\s!=(),]+)")


def parse_selector(text: str, path: str = "-l") -> LabelSelector:
    """The empty text selects everything. Raises SelectorError."""
    parts = [part.strip() for part in _COMMA_OUTSIDE.split(text)] if text.strip() else []
    return LabelSelector.parse({"matchExpressions": [_requirement(part, path) for part in parts]}, path)


def _requirement(part: str, path: str) -> dict[str, Any]:
    if match := _EQUALITY.fullmatch(part):
        operator = "NotIn" if match["sign"] == "!=" else "In"
        return {"key": match["key"], "operator": operator, "values": [match["value"]]}
    if match := _SET.fullmatch(part):
        operator = "NotIn" if match["operator"] == "notin" else "In"
        return {"key": match["key"], "operator": operator, "values": [v.strip() for v in match["values"].split(",")]}
    if match := _PRESENCE.fullmatch(part):
        return {"key": match["key"], "operator": "DoesNotExist" if match["absent"] else "Exists"}
    example = "app=shop, tier!=test, zone in (a, b), key or !key"
    raise SelectorError([f"{path}: {part!r} is no requirement; write {example}"])
