"""Whether a stock PodDisruptionBudget will refuse an eviction after us: then nothing should be charged for it.

API servers ask webhooks before they look at PodDisruptionBudgets. What the watch says of one is confirmed by reading it,
and then we refuse in its place, with its own words: to let the request through uncharged, hoping that the API server
refuses it, would be a way past our budgets whenever the stock one changes its mind in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from zonewise.disruption.pods import PodFacts
from zonewise.disruption.sources import Sources, selector_of
from zonewise.kube.client import Client
from zonewise.objects.policy import POD_DISRUPTION_BUDGETS, PodDisruptionBudget

_READ_SECONDS: Final = 2.0
_NOT_OBSERVED_SECONDS: Final = 10

CANNOT_EVICT: Final = "Cannot evict pod as it would violate the pod's disruption budget."
TOO_MANY: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


@dataclass(frozen=True, slots=True)
class Refusal:
    """As the API server would answer."""

    message: str
    cause: str = ""
    retry_after_seconds: int = 0
    code: int = 429


def refusal(pod: PodFacts, budgets: list[PodDisruptionBudget]) -> Refusal | None:
    """What the API server says to the eviction of a ready, running pod under these; those not ready it treats milder."""
    if not pod.ready or not budgets:
        return None
    if len(budgets) > 1:
        return Refusal(TOO_MANY, code=500)
    (budget,) = budgets
    if budget.status.observed_generation < budget.metadata.generation:
        cause = f"The disruption budget {budget.metadata.name} is still being processed by the server."
        return Refusal(CANNOT_EVICT, cause, _NOT_OBSERVED_SECONDS)
    if budget.status.disruptions_allowed > 0:
        return None
    needs, has = budget.status.desired_healthy, budget.status.current_healthy
    name = budget.metadata.name
    return Refusal(CANNOT_EVICT, f"The disruption budget {name} needs {needs} healthy pods and has {has} currently")


class StockBudgets:
    def __init__(self, client: Client, sources: Sources) -> None:
        self._client = client
        self._sources = sources

    async def refusal(self, pod: PodFacts) -> Refusal | None:
        """From the watch where that allows; a refusal is looked at twice."""
        if refusal(pod, self._sources.pdbs_of(pod)) is None:
            return None
        listed = await self._client.list(POD_DISRUPTION_BUDGETS, pod.namespace, deadline_seconds=_READ_SECONDS)
        return refusal(pod, [found for found in listed.items if selector_of(found).matches(pod.labels)])
