"""Status of a disruption budget, as `zonewise status` and the dashboard show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from zonewise.diagnostics.decide.status.report import BudgetDomainStatus, BudgetStatus, ChargeStatus
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.status import refusal
from zonewise.objects.policy import TopologyDisruptionBudget

_EXPECTED_REASON: Final = "InsufficientPods"
"""Reason of a False condition during every drain. It is no problem, and the numbers show it."""


def budget_status(budget: TopologyDisruptionBudget) -> BudgetStatus:
    status = budget.status
    limit, problems = _limit(budget)
    return BudgetStatus(
        namespace=budget.metadata.namespace,
        name=budget.metadata.name,
        limit=limit,
        enforcement=budget.spec.enforcement,
        allowed=status.disruptions_allowed,
        healthy=status.current_healthy,
        desired=status.desired_healthy,
        pods=status.expected_pods,
        charged=tuple(charge.name for charge in status.ledger),
        charges=tuple(
            ChargeStatus(
                pod=charge.name,
                domain=charge.domain,
                source=charge.source,
                time=charge.time,
                confirmed=charge.confirmed,
            )
            for charge in status.ledger
        ),
        domains=tuple(
            BudgetDomainStatus(
                name=domain.name,
                pods=domain.slots,
                healthy=domain.healthy,
                desired=domain.desired,
                allowed=domain.allowed,
            )
            for domain in status.domains
        ),
        trouble=refusal(budget) or "; ".join(problems or _failed_conditions(budget)),
    )


def _limit(item: TopologyDisruptionBudget) -> tuple[str, tuple[str, ...]]:
    """In words; or why the budget is invalid."""
    try:
        budget = Budget.parse(item)
    except BudgetError as error:
        return "", tuple(error.problems)
    return f"{budget.limit} in each {' and '.join(budget.split_keys)}" if budget.split_keys else budget.limit, ()


def _failed_conditions(budget: TopologyDisruptionBudget) -> Iterator[str]:
    for condition in budget.status.conditions:
        if condition.status == "False" and condition.reason != _EXPECTED_REASON:
            yield f"{condition.type}: {condition.message or condition.reason}"
