"""Reason of a decision: code, sentence and facts, in one form for all packages.

A decision returns a `Reason` beside its result; explain, events, metrics labels, webhook denials and the dashboard all
show that same value, so the sentence is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` is stable and fit for a metrics label; `facts` are what the sentence was made from."""

    code: str
    sentence: str
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.sentence
