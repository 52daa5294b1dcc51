"""All that has to be written so that the slices of one Service are right. Pure.

The controller calls it with what its caches say and writes the answer: creates, then updates in their order, then
deletes. Nothing is remembered between two calls but what stands in the slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zonewise.objects import EndpointSlice
from zonewise.routing import Decision, Expression
from zonewise.slices.draft import Draft, Update


@dataclass(frozen=True, slots=True)
class SlicesPlan:
    """`decisions` and `expressions` by address type; the counts are for metrics.

    `reallocated` endpoints are for other zones than before. The controller tries again for `pods_without_node`.
    """

    creates: tuple[Draft, ...] = ()
    updates: tuple[Update, ...] = ()
    deletes: tuple[EndpointSlice, ...] = ()
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    expressions: Mapping[str, Expression] = field(default_factory=dict)
    added: int = 0
    removed: int = 0
    reallocated: int = 0
    desired_endpoints: int = 0
    desired_slices: int = 0
    slices: int = 0
    pods_without_node: tuple[str, ...] = ()

    @property
    def writes(self) -> int:
        return len(self.creates) + len(self.updates) + len(self.deletes)
