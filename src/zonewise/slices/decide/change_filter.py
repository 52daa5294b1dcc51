"""Filters for watch events: which changes of an object can change the slices of a Service. The informers apply them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise.api.names import ROUTING_STATE
from zonewise.objects import Condition, HasMetadata, Node, Pod, Service
from zonewise.routing import DRAIN_ZONE, read_policy
from zonewise.routing.policy import NoPolicy
from zonewise.topology import is_ready, zone_of

_ENDED: Final = ("Succeeded", "Failed")


def service_matters(old: Service | None, new: Service | None) -> bool:
    """Ignores the routing state annotation that the reporter writes, and the load balancer status."""
    if old is None or new is None:
        return old is not new
    before, after = old.metadata, new.metadata
    return (
        old.spec != new.spec
        or before.uid != after.uid
        or before.labels != after.labels
        or before.deletion_timestamp != after.deletion_timestamp
        or _without_state(before.annotations) != _without_state(after.annotations)
    )


def _without_state(annotations: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in annotations.items() if name != ROUTING_STATE}


def pod_matters(old: Pod, new: Pod) -> bool:
    """Whether the endpoint of a pod may differ, for two states with the same labels."""
    before, after = old.status, new.status
    return (
        before.pod_ips != after.pod_ips
        or _ready(old) != _ready(new)
        or (before.phase != after.phase and (before.phase in _ENDED) != (after.phase in _ENDED))
        or before.pod_ip != after.pod_ip
        or (old.metadata.deletion_timestamp is None) != (new.metadata.deletion_timestamp is None)
        or old.metadata.uid != new.metadata.uid
        or old.spec != new.spec
    )


def _ready(pod: Pod) -> Condition | None:
    return next((condition for condition in pod.status.conditions if condition.type == "Ready"), None)


def routing_matters(old: Node | None, new: Node | None) -> bool:
    """Whether routing may see the two states of a node differently; false for a heartbeat."""
    if old is None or new is None:
        return old is not new
    return (
        old.metadata.labels != new.metadata.labels
        or is_ready(old) != is_ready(new)
        or old.status.allocatable.get("cpu") != new.status.allocatable.get("cpu")
        or old.spec.taints != new.spec.taints
        or old.spec.unschedulable != new.spec.unschedulable
        or names_drain(old) != names_drain(new)
    )


def moves_endpoints(old: Node | None, new: Node | None) -> bool:
    """Whether the endpoints on a node may change, also of Services without a routing policy."""
    return old is None or new is None or zone_of(old.metadata.labels) != zone_of(new.metadata.labels)


def wants_routing(service: Service) -> bool:
    return names_drain(service) is not None or not isinstance(read_policy(service).policy, NoPolicy)


def names_drain(annotated: HasMetadata | None) -> str | None:
    return None if annotated is None else annotated.metadata.annotations.get(DRAIN_ZONE)
