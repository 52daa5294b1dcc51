"""Difference between a live object and the result of an apply, as text. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import yaml

from zonewise.redaction import hide_caller_keys

_THE_SERVERS = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid", "selfLink")
"""Metadata that the API server writes."""


def difference(name: str, live: Mapping[str, Any] | None, applied: Mapping[str, Any] | None) -> str:
    """A unified diff, empty where nothing would change."""
    lines = difflib.unified_diff(_lines(live), _lines(applied), f"live/{name}", f"applied/{name}")
    return "".join(lines)


def _lines(whole: Mapping[str, Any] | None) -> list[str]:
    if whole is None:
        return []
    metadata = {key: value for key, value in whole["metadata"].items() if key not in _THE_SERVERS}
    shown = {key: value for key, value in whole.items() if key != "status"} | {"metadata": metadata}
    text = yaml.safe_dump(shown, sort_keys=True, width=118)
    return hide_caller_keys(text).splitlines(keepends=True)  # a diff ends up in logs of pipelines
