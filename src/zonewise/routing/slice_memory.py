"""The last decision as slices hold it: the memory of the next one, for all programs alike.

Hints tell the zones of each endpoint. In mode own an annotation tells which levels have started. In mode overlay the
hints may come from another writer: they count only if the state annotation of the Service says that they were decided for its
present policy. A node preference has no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from zonewise.api.names import CONSUMER, ROUTING_STATE, STARTED
from zonewise.objects import Endpoint, EndpointSlice, Service
from zonewise.routing.hints_codec import recall
from zonewise.routing.policy import AutomaticHints, Policy, SameDomain, Strength, policy_name, read_policy
from zonewise.routing.routing_nodes import NODE_NAME, RoutingNodes
from zonewise.routing.tiers import Memory
from zonewise.topology import REGION, ZONE


class _State(msgspec.Struct, frozen=True):
    policy: str


def last_decision(service: Service, slices: Sequence[EndpointSlice], cluster: RoutingNodes) -> Memory:
    """From the slices of one address family, in either mode."""
    if any(CONSUMER in endpoint_slice.metadata.labels for endpoint_slice in slices):
        return remember(slices, service, cluster)
    return recalled(service, _endpoints(slices), cluster)


def remember(slices: Sequence[EndpointSlice], service: Service, cluster: RoutingNodes) -> Memory:
    """Mode own. Slices of another kind of policy are ignored."""
    if not any(map(_has_memory, slices)):
        return {}
    policy = read_policy(service).policy
    grouped = is_grouped(policy)
    if not grouped and not isinstance(policy, AutomaticHints):
        return {}
    remembered = [
        endpoint_slice for endpoint_slice in slices if (CONSUMER in endpoint_slice.metadata.labels) is grouped
    ]
    hinted = recall(_endpoints(remembered), cluster)
    if not grouped:
        return hinted
    levels = _started(remembered)
    from_hints = {ZONE, REGION} if ZONE in levels[:1] else set(levels[:1])
    return {key: hinted.get(key, {}) if key in from_hints else {} for key in levels if key in preferred_keys(policy)}


def recalled(service: Service, endpoints: Iterable[Endpoint], cluster: RoutingNodes) -> Memory:
    """Mode overlay."""
    return recall(endpoints, cluster) if hints_match_policy(service) else {}


def hints_match_policy(service: Service) -> bool:
    """Whether the hints in the slices were decided for the present policy. Without a state they are another program's."""
    try:
        state = msgspec.json.decode(service.metadata.annotations.get(ROUTING_STATE, ""), type=_State)
    except msgspec.DecodeError:
        return False
    return state.policy == policy_name(read_policy(service).policy)


def is_grouped(policy: Policy) -> bool:
    """Whether mode own divides the slices by consumer."""
    return isinstance(policy, SameDomain) and {policy.node, policy.zone, policy.region} != {Strength.BALANCED}


def preferred_keys(policy: Policy) -> set[str]:
    """The preferred levels whose assignment is remembered."""
    return {key for key, strength in levels_of(policy).items() if strength is Strength.PREFER and key != NODE_NAME}


def levels_of(policy: Policy) -> dict[str, Strength]:
    return {NODE_NAME: policy.node, ZONE: policy.zone, REGION: policy.region} if isinstance(policy, SameDomain) else {}


def _endpoints(slices: Iterable[EndpointSlice]) -> Iterable[Endpoint]:
    return (endpoint for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ())


def _has_memory(endpoint_slice: EndpointSlice) -> bool:
    return CONSUMER in endpoint_slice.metadata.labels or any(
        endpoint.hints for endpoint in endpoint_slice.endpoints or ()
    )


def _started(slices: Iterable[EndpointSlice]) -> list[str]:
    annotation = max((endpoint_slice.metadata.annotations.get(STARTED, "") for endpoint_slice in slices), default="")
    return [key for key in annotation.split(",") if key in {ZONE, REGION}]
