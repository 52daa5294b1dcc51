"""Events of the stock EndpointSlice controller about hints, word for word.

Emitted where Zonewise replaces that controller, so that alerts on these texts keep working. Zonewise's own reason, which
names the cause, goes into a separate event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from zonewise.routing.reason import RoutingCode, RoutingReason

_MESSAGES: Final[Mapping[RoutingCode, str]] = {
    RoutingCode.HINTED: "Topology Aware Hints has been enabled",
    RoutingCode.NO_POLICY: "Topology Aware Hints has been disabled",
    RoutingCode.INSUFFICIENT_NODE_INFO: (
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
    ),
    RoutingCode.TOO_FEW_ENDPOINTS: "Insufficient number of endpoints ({endpoints} endpoints, {zones} zones)",
    RoutingCode.WOULD_OVERLOAD: (
        "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold "
        "({endpoints} endpoints, {zones} zones)"
    ),
    RoutingCode.ENDPOINT_WITHOUT_ZONE: "One or more endpoints do not have a zone specified",
}

STOCK_CODES: Final = frozenset(_MESSAGES)


class EndpointSliceEvent(NamedTuple):
    type: str
    reason: str
    message: str


def stock_event(reason: RoutingReason, address_type: str) -> EndpointSliceEvent:
    """The event upstream would record for a result of `hint_strictly`."""
    message = f"{_MESSAGES[reason.code].format_map(reason.facts)}, addressType: {address_type}"
    if reason.code is RoutingCode.HINTED:
        return EndpointSliceEvent("Normal", "TopologyAwareHintsEnabled", message)
    return EndpointSliceEvent("Warning", "TopologyAwareHintsDisabled", message)
