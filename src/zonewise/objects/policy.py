"""Views of what limits disruptions: our TopologyDisruptionBudget, the stock PodDisruptionBudget, and an Eviction."""

from __future__ import annotations

import re
from typing import Any

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource


class StatusCondition(View, frozen=True):
    """A condition as `metav1.Condition` has it."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class TopologyDisruptionBudgetSpec(View, frozen=True):
    """As written; `zonewise.disruption.decide.budget` reads and checks it."""

    selector: dict[str, Any] | None = None
    node_selector_term: dict[str, Any] | None = None
    domain_keys: tuple[str, ...] = ()
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    max_disrupted_domains: int | None = None
    unhealthy_pod_eviction_policy: str = "IfHealthyBudget"
    enforcement: str = "Enforce"
    apply_to: tuple[str, ...] = ("Evictions", "ControllerDeletes")


class BudgetDomain(View, frozen=True):
    name: str = ""
    slots: int = 0
    target: int = 0
    healthy: int = 0
    desired: int = 0
    allowed: int = 0


_NOTHING = "-"
_CONFIRMED = "confirmed"
_CLOSED = "closed"
_WORDS = 6
_WORD = re.compile(r"[!-~]+")
"""Without blanks and line breaks of any kind: no word can begin another word or another line."""
_LINE = re.compile(r"[!-~]+(?: [!-~]+)*")


class BudgetCharge(View, frozen=True):
    """One line of the ledger; `owner` is the uid of the pod's top-level controller.

    In the object all of them are one text, a line for each: `uid name domain owner time source`, and `confirmed` or
    `closed` if it is. API servers copy, check and compare every field of a status several times with every write; 60 charges of seven
    fields cost them three times as much as one text.
    """

    uid: str = ""
    name: str = ""
    domain: str = ""
    owner: str = ""
    time: str = ""
    source: str = "Eviction"
    confirmed: bool = False
    closed: bool = False

    @classmethod
    def parse(cls, line: str) -> BudgetCharge:
        """Words that are missing are empty."""
        words = line.split(" ")
        fields = ["" if word == _NOTHING else word for word in words[:_WORDS]]
        uid, name, domain, owner, time, source = [*fields, *[""] * (_WORDS - len(fields))]
        more = words[_WORDS:]
        return cls(uid, name, domain, owner, time, source or "Eviction", _CONFIRMED in more, _CLOSED in more)

    def __str__(self) -> str:
        """Raises ValueError for what would not be read back as it is."""
        words = (self.uid, self.name, self.domain, self.owner, self.time, self.source)
        if bad := [word for word in words if word == _NOTHING or (word and not _WORD.fullmatch(word))]:
            raise ValueError(f"no word for a ledger: {bad[0]!r}")
        states = [word for word, holds in ((_CONFIRMED, self.confirmed), (_CLOSED, self.closed)) if holds]
        return " ".join([*(word or _NOTHING for word in words), *states])


def charge_lines(charges: str) -> list[str]:
    """The lines of a ledger that `BudgetCharge` may have written; other lines are ignored."""
    return [line for line in charges.split("\n") if _LINE.fullmatch(line)]


class BudgetDeparture(View, frozen=True):
    """`missing` of an owner's `slots` in a domain belong to pods that are gone and not replaced."""

    owner: str = ""
    domain: str = ""
    outside: bool = False
    missing: int = 0
    slots: int = 0


class BudgetSurplus(View, frozen=True):
    owner: str = ""
    pods: int = 0


class BudgetOutside(View, frozen=True):
    """Pods of the budget's workloads where it does not apply; they share in a scale-down."""

    domain: str = ""
    slots: int = 0


class TopologyDisruptionBudgetStatus(View, frozen=True):
    version: int = 1
    observed_generation: int = 0
    expected_pods: int = 0
    uncovered_pods: int = 0
    unmanaged_pods: int = 0
    unplaced_pods: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    disruptions_allowed: int = 0
    allowed_by_domain: str = ""
    domains: tuple[BudgetDomain, ...] = ()
    surplus: tuple[BudgetSurplus, ...] = ()
    outside: tuple[BudgetOutside, ...] = ()
    charges: str = ""
    departures: tuple[BudgetDeparture, ...] = ()
    conditions: tuple[StatusCondition, ...] = ()

    @property
    def ledger(self) -> tuple[BudgetCharge, ...]:
        return tuple(map(BudgetCharge.parse, charge_lines(self.charges)))


class TopologyDisruptionBudget(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: TopologyDisruptionBudgetSpec = TopologyDisruptionBudgetSpec()
    status: TopologyDisruptionBudgetStatus = TopologyDisruptionBudgetStatus()


class PodDisruptionBudgetSpec(View, frozen=True):
    selector: dict[str, Any] | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(View, frozen=True):
    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] = {}
    conditions: tuple[StatusCondition, ...] = ()


class PodDisruptionBudget(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class Preconditions(View, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(View, frozen=True):
    grace_period_seconds: int | None = None
    dry_run: tuple[str, ...] | None = None
    preconditions: Preconditions | None = None


class Eviction(View, frozen=True):
    """The body of a request to `pods/eviction`, in policy/v1 and v1beta1 alike; it may lack the namespace."""

    metadata: Metadata = Metadata()
    delete_options: DeleteOptions | None = None


POD_DISRUPTION_BUDGETS = Resource(
    view=PodDisruptionBudget, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy"
)
TOPOLOGY_DISRUPTION_BUDGETS = Resource(
    view=TopologyDisruptionBudget,
    kind="TopologyDisruptionBudget",
    plural="topologydisruptionbudgets",
    group="zonewise.dev",
    version="v1alpha1",
)
