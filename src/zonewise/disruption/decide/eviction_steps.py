"""Requests, steps and answer of an eviction review, which `disruption.decide.eviction` decides. Pure.

Each step is one call that the webhook makes for the review; its docstring says what the review gets as the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from zonewise.disruption.decide.budget import Budget, DisruptionKind
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeRequest
from zonewise.disruption.decide.ledger import ChargeSource, Ledger
from zonewise.disruption.decide.pods import NodeDomains, PodFacts
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.objects import Key
from zonewise.objects.policy import PodDisruptionBudget

R = TypeVar("R")


class PodDeleter(StrEnum):
    """The kind of client that deletes a pod."""

    WORKLOAD = "workload controller"
    SYSTEM = "system"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class EvictionRequest:
    """`uid` is the precondition; empty where there is none."""

    key: Key
    uid: str = ""
    dry_run: bool = False
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """`uid` is that of the object which comes with the request; nothing else of it is believed."""

    key: Key
    uid: str
    deleter: PodDeleter
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DisruptionRequest:
    """A request to take one certain pod."""

    pod: PodFacts
    kind: DisruptionKind
    source: ChargeSource
    dry_run: bool = False
    reservation: str = ""

    @property
    def evicts(self) -> bool:
        """Whether the pod is really evicted, so that it must be charged."""
        return self.kind is DisruptionKind.EVICTIONS and not self.dry_run


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionView:
    """The webhook's caches. They change between two steps, so they are asked each time."""

    pod: Callable[[Key], PodFacts | None]
    budgets_of: Callable[[PodFacts], Sequence[Budget]]
    case_of: Callable[[Key], BudgetCase | None]
    """The newest known version of a budget; what `ReadBudgets` read is included."""
    node_domains: Callable[[], NodeDomains]
    pdbs_of: Callable[[PodFacts], Sequence[PodDisruptionBudget]]
    owner_of: Callable[[PodFacts], str]
    peers_of: Callable[[PodFacts], Sequence[PodFacts]]
    is_replaced: Callable[[PodFacts, Ledger], bool]
    leader_trouble: Callable[[], str]
    """Why counts can't be trusted now; empty while they can."""
    leader_undecided: Callable[[], bool]
    now: Callable[[], str]


class _Step(Generic[R]):
    """`result = yield from step` hands the step out of the machine and gets its result."""

    __slots__ = ()

    def __iter__(self) -> Generator[Any, R, R]:
        result = yield self
        return result


@dataclass(frozen=True, slots=True)
class ReadPod(_Step[PodFacts | None]):
    """Result: the pod as stored, or None."""

    key: Key


@dataclass(frozen=True, slots=True)
class ReadNode(_Step[NodeDomains | None]):
    """Result: the cached nodes with this one as stored, or None if it does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class ReadBudgets(_Step[Mapping[Key, str]]):
    """Result: the resource version of each that exists."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class ReadPdbs(_Step[Sequence[PodDisruptionBudget]]):
    """Result: the stored PodDisruptionBudgets that select the pod."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Charge(_Step[Sequence[ChargeAnswer]]):
    """Result: the answer of each budget, up to the first that refuses."""

    request: ChargeRequest
    budgets: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Report(_Step[None]):
    """Count and log what the budgets answered."""

    request: DisruptionRequest
    answers: tuple[ChargeAnswer, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of the review. `causes` are sentences for the status of a refusal.

    `uid` is that of the pod which an allowed eviction may take, if the eviction does not say itself. `exact`: only as it
    was read last.
    """

    allowed: bool
    message: str = ""
    code: int = 0
    causes: tuple[str, ...] = ()
    retry_after_seconds: int = 0
    uid: str = ""
    exact: bool = False


Step = ReadPod | ReadNode | ReadBudgets | ReadPdbs | Charge | Report

ALLOWED: Final = Answer(allowed=True)
