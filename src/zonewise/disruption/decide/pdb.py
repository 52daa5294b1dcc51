"""Refusals of stock PodDisruptionBudgets, predicted from their status. Pure.

API servers call webhooks before they check PodDisruptionBudgets, so a refusal would come after the charge. The guard,
`explain` and the wave planners therefore check here first, in the order of the API server's own eviction handler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zonewise.disruption.decide.pods import PodFacts, PodStage
from zonewise.objects import Key, key_of
from zonewise.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from zonewise.topology import Reason

_NOT_OBSERVED_SECONDS: Final = 10
_MOST_DISRUPTED: Final = 2000

CANNOT_EVICT: Final = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL: Final = "SeveralStockBudgets"
TOO_MANY: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


@dataclass(frozen=True, slots=True)
class PdbRefusal:
    """The API server's answer; `reason` is the same in our words, for plans and events."""

    message: str
    reason: Reason
    cause: str = ""
    retry_after_seconds: int = 0
    code: int = 429


def refusal(
    pod: PodFacts, budgets: Sequence[PodDisruptionBudget], spent: Mapping[Key, int] | None = None
) -> PdbRefusal | None:
    """`budgets`: those that select the pod. `spent`: how much of their allowance is used by other pods of the wave."""
    if not budgets or pod.terminating or pod.stage is not PodStage.RUNNING:
        return None
    if len(budgets) > 1:
        return PdbRefusal(TOO_MANY, _several(budgets), code=500)
    (budget,) = budgets
    status, key, name = budget.status, key_of(budget), budget.metadata.name
    if not pod.ready and _lets_unready_go(budget):
        return None
    if status.observed_generation < budget.metadata.generation:
        reason = Reason("StockBudgetNotObserved", f"PodDisruptionBudget {key} was changed and not counted yet")
        cause = f"The disruption budget {name} is still being processed by the server."
        return PdbRefusal(CANNOT_EVICT, reason, cause, _NOT_OBSERVED_SECONDS)
    if problem := _forbidden(status):
        reason = Reason("StockBudget", f"PodDisruptionBudget {key} forbids evictions: {problem}")
        return PdbRefusal(f'poddisruptionbudget.policy "{name}" is forbidden: {problem}', reason, code=403)
    if status.disruptions_allowed > (spent or {}).get(key, 0):
        return None
    why = _why_none(status)
    reason = Reason("StockBudget", f"PodDisruptionBudget {key} allows no further disruption: it{why}")
    return PdbRefusal(CANNOT_EVICT, reason, f"The disruption budget {name}{why}")


def _forbidden(status: PodDisruptionBudgetStatus) -> str:
    if status.disruptions_allowed < 0:
        return "pdb disruptions allowed is negative"
    if len(status.disrupted_pods) > _MOST_DISRUPTED:
        return "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
    return ""


def _why_none(status: PodDisruptionBudgetStatus) -> str:
    """The numbers can't be relied on after a failed sync, so that comes first."""
    denial = next(
        (entry for entry in status.conditions if entry.type == "DisruptionAllowed" and entry.status == "False"), None
    )
    none = " does not allow evicting pods currently"
    if denial is not None and denial.message and denial.reason == "SyncFailed":
        return f"{none} because it failed sync: {denial.message}"
    if status.current_healthy <= status.desired_healthy:
        return f" needs {status.desired_healthy} healthy pods and has {status.current_healthy} currently"
    return f"{none} ({denial.reason}): {denial.message}" if denial is not None and denial.message else none


def _several(budgets: Sequence[PodDisruptionBudget]) -> Reason:
    names = ", ".join(str(key_of(budget)) for budget in budgets)
    return Reason(
        SEVERAL,
        f"the API server evicts no pod that several PodDisruptionBudgets select: {names}; leave one of them",
    )


def _lets_unready_go(budget: PodDisruptionBudget) -> bool:
    if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
        return True
    return budget.status.current_healthy >= budget.status.desired_healthy > 0
