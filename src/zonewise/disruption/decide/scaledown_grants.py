"""Ready pods that a workload's own controller needs a grant to delete; decides for `controller.scaledown`. Pure.

A ReplicaSet may give any of its pods, so those that keep the spread are chosen. A StatefulSet always takes its highest
ordinal first: a budget can only delay that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zonewise.disruption.decide.pod_order import Domain, OrderedPod, PodOrder, shrinking
from zonewise.disruption.decide.pods import PodFacts, PodStage, ordinal
from zonewise.objects.apps import DaemonSet, ReplicaSet, StatefulSet
from zonewise.topology import NodeSelector


@dataclass(frozen=True, slots=True)
class GrantDemand:
    """`pods` may be granted in `order`, `most` of them now. `revoked` have a grant that is not needed any more."""

    pods: tuple[PodFacts, ...]
    order: PodOrder
    most: int
    revoked: tuple[PodFacts, ...] = ()
    waiting: int = 0
    """Pods granted before that still exist."""
    unready: tuple[PodFacts, ...] = ()
    """Unready pods, which its controller takes first and without a grant."""


def of_replica_set(workload: ReplicaSet, pods: Iterable[PodFacts], domains: Mapping[str, Domain]) -> GrantDemand:
    """`domains` by uid."""
    active = [pod for pod in pods if not pod.terminating and pod.stage is not PodStage.ENDED]
    members = [OrderedPod(pod.uid, domains.get(pod.uid, ""), pod.ready, pod.granted) for pod in active]
    result = shrinking(members, workload.spec.replicas)
    revoked = tuple(pod for pod in active if pod.uid in result.surplus)
    open_ones = tuple(pod for pod in active if pod.ready and not pod.granted)
    granted = sum(pod.granted for pod in active) - len(revoked)
    unready = tuple(pod for pod in active if not pod.ready) if result.missing else ()
    return GrantDemand(open_ones, PodOrder.FULLEST_FIRST, result.missing, revoked, granted, unready)


def of_stateful_set(workload: StatefulSet, pods: Iterable[PodFacts]) -> GrantDemand:
    by_ordinal = {ordinal(pod.name): pod for pod in pods if pod.stage is not PodStage.ENDED}
    first = workload.spec.ordinals.start if workload.spec.ordinals else 0
    end = first + workload.spec.replicas
    beyond = [by_ordinal[number] for number in sorted(by_ordinal, reverse=True) if number >= end]
    stale = _to_update(workload, by_ordinal, range(end - 1, first - 1, -1))
    leaving = _allowed_together(workload, beyond) if beyond else _next_to_update(by_ordinal, stale, end)
    granted = [pod for pod in by_ordinal.values() if pod.granted and not pod.terminating]
    revoked = tuple(pod for pod in granted if pod not in beyond and pod not in stale)
    open_ones = tuple(pod for pod in leaving if pod.ready and not pod.granted)
    return GrantDemand(open_ones, PodOrder.AS_GIVEN, len(open_ones), revoked, len(granted) - len(revoked))


def of_daemon_set(workload: DaemonSet, pods: Iterable[PodFacts], nodes: Mapping[str, Mapping[str, str]]) -> GrantDemand:
    """Its pods on nodes whose labels don't match any more. `controller.rollout` handles its updates."""
    selector, affinity = workload.spec.template.spec.node_selector, workload.spec.template.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    belongs = NodeSelector.parse_as_scheduler(required) if required is not None else None

    def misplaced(pod: PodFacts) -> bool:
        labels = nodes.get(pod.node, {})
        if any(labels.get(key) != value for key, value in selector.items()):
            return True
        return belongs is not None and not belongs.matches(labels, pod.node)

    present = [pod for pod in pods if pod.active]
    leaving = [pod for pod in present if misplaced(pod)]
    granted = [pod for pod in present if pod.granted]
    revoked = tuple(pod for pod in granted if pod not in leaving)
    open_ones = tuple(pod for pod in leaving if pod.ready and not pod.granted)
    return GrantDemand(open_ones, PodOrder.BY_DOMAIN, len(open_ones), revoked, len(granted) - len(revoked))


def _allowed_together(workload: StatefulSet, beyond: list[PodFacts]) -> list[PodFacts]:
    """Highest first, as its controller deletes pods beyond the replicas: one by one, or all with policy Parallel."""
    parallel = workload.spec.pod_management_policy == "Parallel"
    return [pod for pod in (beyond if parallel else beyond[:1]) if not pod.terminating]


def _to_update(workload: StatefulSet, by_ordinal: Mapping[int, PodFacts], ordinals: Iterable[int]) -> list[PodFacts]:
    """With the strategy RollingUpdate, highest first: the pods that its controller will replace."""
    strategy, status = workload.spec.update_strategy, workload.status
    if strategy.type != "RollingUpdate" or status.observed_generation < workload.metadata.generation:
        return []
    partition = strategy.rolling_update.partition if strategy.rolling_update else 0
    first = workload.spec.ordinals.start if workload.spec.ordinals else 0
    present = [by_ordinal[number] for number in ordinals if number in by_ordinal and number >= first + partition]
    return [pod for pod in present if pod.revision != status.update_revision and not pod.terminating]


def _next_to_update(by_ordinal: Mapping[int, PodFacts], stale: list[PodFacts], end: int) -> list[PodFacts]:
    """The highest, once all above it exist and are ready."""
    if not stale:
        return []
    above = [by_ordinal.get(number) for number in range(ordinal(stale[0].name) + 1, end)]
    return stale[:1] if all(pod is not None and pod.ready and not pod.terminating for pod in above) else []


def levels(pods: Iterable[PodFacts], domains: Mapping[str, Domain], going: Iterable[PodFacts] = ()) -> Counter[Domain]:
    """The pods of a workload in each domain, without those that leave and those that are `going` anyway."""
    gone = {pod.uid for pod in going}
    return Counter(domains.get(pod.uid, "") for pod in pods if pod.active and not pod.leaving and pod.uid not in gone)


def rank(pod: PodFacts, *, cordoned: bool) -> tuple[int | str, ...]:
    """Within a domain: pods on cordoned nodes first; pods with another client's deletion cost last."""
    foreign_cost = pod.deletion_cost != 0 and not pod.granted
    return int(foreign_cost), int(not cordoned), pod.deletion_cost, pod.name
