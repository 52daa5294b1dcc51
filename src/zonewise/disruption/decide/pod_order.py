"""Order in which the pods of a workload leave; `wave` takes the next pod until no budget allows more. Pure.

A rollout by eviction goes domain by domain, in alphabetical order, so that a rollback starts with what was updated first.
A ReplicaSet that shrinks, because it is scaled down or because its Deployment rolls out, gives from the fullest domain
first, which keeps the spread. The stock controller follows once the chosen pods have the lowest deletion cost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

Domain = str
"""The domain of a pod as far as order is concerned; empty if its node has no zone."""

LEAVES_FIRST: Final = -(2**31)
"""The lowest deletion cost: a chosen pod goes before all others, whatever their costs are."""


class PodOrder(StrEnum):
    BY_DOMAIN = "ByDomain"
    FULLEST_FIRST = "FullestFirst"
    AS_GIVEN = "AsGiven"
    """The workload's controller has a fixed order."""


class RankedPod(Protocol):
    @property
    def uid(self) -> str: ...
    @property
    def domain(self) -> Domain: ...
    @property
    def ready(self) -> bool: ...
    @property
    def rank(self) -> tuple[int | str, ...]: ...
    @property
    def refusal_rank(self) -> int:
        """Above 0 if it was refused, and higher than the rank of those refused before it."""
        ...


R = TypeVar("R", bound=RankedPod)


class PodQueue(Generic[R]):
    """The pods of one workload that may go, one after the other; call `went` for those that do."""

    def __init__(
        self,
        pods: Iterable[R],
        order: PodOrder,
        levels: Mapping[Domain, int] | None = None,
        refusal_rank: Callable[[Domain], int] = lambda _domain: 0,
    ) -> None:
        """`levels`: the workload's pods in each domain, those that stay included. `refusal_rank`: the rank of a domain."""
        self._order = order
        self._levels = Counter(levels or {})
        self._waiting: dict[Domain, deque[R]] = {}
        if order is PodOrder.AS_GIVEN:
            self._first = deque(pods)
            return
        ranked = sorted(
            pods, key=lambda pod: (refusal_rank(pod.domain), pod.domain, pod.refusal_rank, pod.ready, pod.rank)
        )
        self._first = deque[R]()
        for pod in ranked:
            if pod.ready or pod.refusal_rank or refusal_rank(pod.domain):
                self._waiting.setdefault(pod.domain, deque()).append(pod)
            else:
                self._first.append(pod)

    def next(self) -> R | None:
        """Unready pods first, since they don't serve; but not refused ones, which would hold all others."""
        if self._first:
            return self._first.popleft()
        domain = self._next_domain()
        if domain is None:
            return None
        pods = self._waiting[domain]
        pod = pods.popleft()
        if not pods:
            del self._waiting[domain]
        return pod

    def went(self, pod: R) -> None:
        self._levels[pod.domain] -= 1

    def _next_domain(self) -> Domain | None:
        if self._order is PodOrder.FULLEST_FIRST:
            return min(
                self._waiting,
                key=lambda domain: (-self._levels[domain], -len(self._waiting[domain]), domain),
                default=None,
            )
        return next(iter(self._waiting), None)


class ScaleDownOrder(NamedTuple):
    """What is left to do for a ReplicaSet: the number of pods still to choose, and the chosen pods that should stay."""

    missing: int
    surplus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrderedPod:
    """A pod of a shrinking ReplicaSet that is neither ended nor terminating."""

    uid: str
    domain: Domain
    ready: bool
    chosen: bool


def shrinking(members: Iterable[OrderedPod], replicas: int) -> ScaleDownOrder:
    """How many ready pods have to be chosen until the ReplicaSet has `replicas`.

    Unready pods need not be chosen: its controller takes them first, whatever their cost is. If too many are chosen,
    because it was scaled up again, those of the emptiest domains stay.
    """
    members = list(members)
    ready = [member for member in members if member.ready]
    leaving = max(0, len(members) - replicas - (len(members) - len(ready)))
    chosen = [member for member in ready if member.chosen]
    if len(chosen) <= leaving:
        return ScaleDownOrder(leaving - len(chosen), ())
    return ScaleDownOrder(0, tuple(member.uid for member in _emptiest_first(members, chosen)[: len(chosen) - leaving]))


def _emptiest_first(members: Iterable[OrderedPod], chosen: Iterable[OrderedPod]) -> list[OrderedPod]:
    staying = Counter(member.domain for member in members if not member.chosen)
    remaining, result = list(chosen), []
    while remaining:
        member = min(remaining, key=lambda member: (staying[member.domain], member.domain, member.uid))
        remaining.remove(member)
        staying[member.domain] += 1
        result.append(member)
    return result
