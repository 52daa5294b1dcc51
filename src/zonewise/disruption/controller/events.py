"""Metrics, events and log lines about budgets; each change once.

`status_writer` calls it around every write. The replaced status shows what was reported before, so that a new leader does
not repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import Counter, Gauge

from zonewise import log
from zonewise.disruption.controller.budget_store import BudgetVersion, status_only
from zonewise.disruption.decide.allowance import BudgetAllowance
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.ledger import LedgerEntry
from zonewise.disruption.decide.pods import Workloads
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import DISRUPTION_ALLOWED, SYNC_FAILED, PublishedStatus, refusal
from zonewise.kube.client.client import Client
from zonewise.kube.clock import utc_now
from zonewise.kube.controller.recorder import Recorder, Severity, reference_to
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import Key, micro_time
from zonewise.objects.apps import STATEFUL_SETS
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS, StatusCondition, TopologyDisruptionBudget

_log = log.get_logger(__name__)

ORDER_FIXED: Final = "ScaleDownOrderFixed"

_DOMAIN: Final = ("namespace", "budget", "domain")
_ALLOWED: Final = Gauge("zonewise_budget_allowed", "Pods that may leave a domain now", _DOMAIN)
_HEALTHY: Final = Gauge("zonewise_budget_healthy", "Pods of a domain that serve and are not charged", _DOMAIN)
_DESIRED: Final = Gauge("zonewise_budget_desired", "Pods of a domain that must be healthy", _DOMAIN)
_CHARGED: Final = Gauge("zonewise_budget_charged", "Charged pods that are not replaced yet", ("namespace", "budget"))
_GIVEN_UP: Final = Counter("zonewise_budget_charges_given_up", "Charged pods that stayed", ("namespace", "budget"))


def fixed_order_condition(numbers: BudgetAllowance, workloads: Workloads) -> tuple[StatusCondition, ...]:
    """Condition while a StatefulSet scales down: it always gives up its highest ordinals first."""
    owners = [workload.owner for uid in numbers.tally.surplus if (workload := workloads.get(uid)) is not None]
    names = sorted(owner.name for owner in owners if owner.kind == STATEFUL_SETS.kind)
    if not names:
        return ()
    message = f"StatefulSet {', '.join(names)} gives up its highest ordinals first: the budget can delay them, not choose others"
    return (StatusCondition(type=ORDER_FIXED, status="True", reason="StatefulSet", message=message),)


class BudgetEvents:
    def __init__(self, client: Client, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self._domains_in_metrics: dict[Key, set[str]] = {}

    def set_metrics(self, budget: Budget, status: PublishedStatus) -> None:
        """Sets the metrics to the count, whether or not it is published yet."""
        key, domains = budget.key, status.numbers.domains
        for name, domain in domains.items():
            labels = (key.namespace, key.name, name)
            _ALLOWED.labels(*labels).set(domain.allowed)
            _HEALTHY.labels(*labels).set(domain.healthy)
            _DESIRED.labels(*labels).set(domain.desired)
        _CHARGED.labels(key.namespace, key.name).set(len(status.ledger))
        self._remove_metrics(key, self._domains_in_metrics.get(key, set()) - domains.keys())
        self._domains_in_metrics[key] = set(domains)

    def forget(self, key: Key) -> None:
        if key in self._domains_in_metrics:
            self._remove_metrics(key, self._domains_in_metrics.pop(key))
            _CHARGED.remove(*key)

    def _remove_metrics(self, key: Key, domains: set[str]) -> None:
        for name in domains:
            for gauge in (_ALLOWED, _HEALTHY, _DESIRED):
                gauge.remove(key.namespace, key.name, name)

    def published(self, version: BudgetVersion, after: PublishedStatus, given_up: Sequence[LedgerEntry]) -> None:
        reference = reference_to(TOPOLOGY_DISRUPTION_BUDGETS, version.stored)
        for severity, reason, note in _new_events(version.status, after):
            self._recorder.record(reference, severity, reason, note)
        for entry in given_up:
            _GIVEN_UP.labels(*version.key).inc()
            note = f"Pod {entry.name} was to leave and stayed: its charge is taken back"
            self._recorder.record(reference, Severity.WARNING, "NotDeleted", note)
        self._log_change(version, after)

    def _log_change(self, version: BudgetVersion, after: PublishedStatus) -> None:
        was, now = version.status.condition(DISRUPTION_ALLOWED), after.condition(DISRUPTION_ALLOWED)
        if now is not None and (was is None or (was.status, was.reason) != (now.status, now.reason)):
            _log.info("budget changed", budget=str(version.key), reason=now.reason, message=now.message)

    def refused(self, version: BudgetVersion) -> None:
        """A newer release wrote its status: said once, as nothing is written that would remember it."""
        problem = version.status.refusal
        if log.warn_once(_log, "budget left alone", budget=str(version.key), problem=problem):
            reference = reference_to(TOPOLOGY_DISRUPTION_BUDGETS, version.stored)
            self._recorder.record(reference, Severity.WARNING, DisruptionCode.STATUS_NEWER, f"Not counted: {problem}")

    async def invalid(self, stored: TopologyDisruptionBudget | None, error: BudgetError) -> None:
        """A spec that was never validated. Its status says what is wrong, once per spec."""
        if stored is None or stored.status.observed_generation == stored.metadata.generation or refusal(stored):
            return
        problem = "; ".join(error.problems)
        condition = {
            "type": DISRUPTION_ALLOWED,
            "status": "False",
            "reason": SYNC_FAILED,
            "message": problem,
            "lastTransitionTime": micro_time(utc_now()),
            "observedGeneration": stored.metadata.generation,
        }
        document = {
            "observedGeneration": stored.metadata.generation,
            "disruptionsAllowed": 0,
            "domains": [],
            "charges": stored.status.charges,
            "conditions": [condition],
        }
        body = status_only(stored, document)
        try:
            await self._client.update(
                TOPOLOGY_DISRUPTION_BUDGETS, body, stored.metadata.namespace, subresource="status"
            )
        except NotFound:
            return
        self._recorder.record(
            reference_to(TOPOLOGY_DISRUPTION_BUDGETS, stored), Severity.WARNING, "InvalidBudget", problem
        )


def _new_events(before: PublishedStatus, after: PublishedStatus) -> Iterator[tuple[Severity, str, str]]:
    unmanaged = after.numbers.tally.unmanaged
    if unmanaged and not before.numbers.tally.unmanaged:
        note = f"{unmanaged} pods have no controller that says how many there should be: they are counted as they are"
        yield Severity.WARNING, "UnmanagedPods", note
    fixed = after.condition(ORDER_FIXED)
    if fixed is not None and before.condition(ORDER_FIXED) is None:
        yield Severity.NORMAL, ORDER_FIXED, fixed.message
