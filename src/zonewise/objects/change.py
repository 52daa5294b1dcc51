"""One change of one object, as a watch reports it."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from zonewise.objects.meta import Key

T = TypeVar("T")


class Change(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One object added (no `old`), removed (no `new`) or modified."""

    key: Key
    old: T | None
    new: T | None
