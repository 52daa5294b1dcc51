"""An overlay decision with its inputs, so that reviews of other slices of the Service can share it. Pure.

The stock controller writes the slices of a Service one after another, and each write is reviewed. As long as nothing
but hints changes in between, and only to what was decided, the decision stands: it is the one made again from its own
hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zonewise.objects import EndpointSlice, Key, Service, key_of
from zonewise.routing import Drain, HintsForm, RoutingNodes
from zonewise.slices.decide.overlay import Endpoints, Overlay, endpoints_with_hints, overlay


@dataclass(frozen=True, slots=True)
class OverlayInputs:
    service: Service
    slices: tuple[EndpointSlice, ...]
    cluster: RoutingNodes
    drained: Drain

    @property
    def size(self) -> int:
        return sum(len(endpoint_slice.endpoints or ()) for endpoint_slice in self.slices)


@dataclass(frozen=True, slots=True)
class SharedOverlay:
    """`before` and `after`: the endpoints of each slice as they were, and with the hints of the decision."""

    inputs: OverlayInputs
    answer: Overlay
    before: Mapping[Key, Endpoints]
    after: Mapping[Key, Endpoints]

    def covers(self, inputs: OverlayInputs) -> bool:
        decided = self.inputs
        return (
            inputs.cluster is decided.cluster
            and inputs.drained == decided.drained
            and inputs.service == decided.service
            and len(inputs.slices) == len(decided.slices)
            and all(self._knows(key, endpoints) for key, endpoints in _by_slice(inputs.slices))
        )

    def _knows(self, key: Key, endpoints: Endpoints) -> bool:
        return key in self.before and endpoints in (self.before[key], self.after[key])


def decide_shared(inputs: OverlayInputs, hints: HintsForm) -> SharedOverlay:
    answer = overlay(inputs.service, inputs.slices, inputs.cluster, hints=hints, drained=inputs.drained)
    before = dict(_by_slice(inputs.slices))
    after = {key: endpoints_with_hints(endpoints, answer.hints[key]) for key, endpoints in before.items()}
    return SharedOverlay(inputs, answer, before, after)


def _by_slice(slices: Iterable[EndpointSlice]) -> Iterable[tuple[Key, Endpoints]]:
    return ((key_of(endpoint_slice), endpoint_slice.endpoints or ()) for endpoint_slice in slices)
