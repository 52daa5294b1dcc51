"""What a budget says of itself, as `zonewise status` and the dashboard show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from zonewise.diagnostics.decide.status.report import BudgetDomainStatus, BudgetStatus, ChargeStatus
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.objects.policy import TopologyDisruptionBudget

_IS_AN_ANSWER: Final = "InsufficientPods"
"""Why a condition is False in the midst of every drain: the numbers say it, and nothing is amiss."""


def budget_status(found: TopologyDisruptionBudget) -> BudgetStatus:
    said = found.status
    limit, problems = _limit(found)
    return BudgetStatus(
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        limit=limit,
        enforcement=found.spec.enforcement,
        allowed=said.disruptions_allowed,
        healthy=said.current_healthy,
        desired=said.desired_healthy,
        pods=said.expected_pods,
        charged=tuple(charge.name for charge in said.ledger),
        charges=tuple(
            ChargeStatus(
                pod=each.name, domain=each.domain, source=each.source, time=each.time, confirmed=each.confirmed
            )
            for each in said.ledger
        ),
        domains=tuple(
            BudgetDomainStatus(
                name=domain.name,
                pods=domain.slots,
                healthy=domain.healthy,
                desired=domain.desired,
                allowed=domain.allowed,
            )
            for domain in said.domains
        ),
        trouble="; ".join(problems or _amiss(found)),
    )


def _limit(found: TopologyDisruptionBudget) -> tuple[str, tuple[str, ...]]:
    """As people say it, and why it is none."""
    try:
        budget = Budget.parse(found)
    except BudgetError as error:
        return "", tuple(error.problems)
    return f"{budget.limit} in each {' and '.join(budget.split_keys)}" if budget.split_keys else budget.limit, ()


def _amiss(found: TopologyDisruptionBudget) -> Iterator[str]:
    for each in found.status.conditions:
        if each.status == "False" and each.reason != _IS_AN_ANSWER:
            yield f"{each.type}: {each.message or each.reason}"
