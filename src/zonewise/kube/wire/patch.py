"""Patch types: JSON patch, merge patch, strategic merge patch, server-side apply. Pure; `Client.patch` sends them.

A patch names only the fields to change, so fields that no view knows stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902: operations in order, all or nothing; a `test` operation makes the patch conditional."""

    operations: Sequence[Mapping[str, Any]]
    content_type: ClassVar[str] = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class MergePatch:
    """RFC 7386: maps are merged, lists replaced, null deletes."""

    body: Mapping[str, Any]
    content_type: ClassVar[str] = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """Like a merge, with lists merged by key; only for built-in kinds."""

    body: Mapping[str, Any]
    content_type: ClassVar[str] = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply: the whole set of fields `manager` owns; one it no longer names is removed."""

    body: Mapping[str, Any]
    manager: str | None = None
    force: bool = False
    content_type: ClassVar[str] = "application/apply-patch+yaml"


Patch = JsonPatch | MergePatch | StrategicPatch | Apply


def pointer(*parts: str | int) -> str:
    """An RFC 6901 path: `pointer("metadata", "annotations", "zonewise.dev/padding")`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
