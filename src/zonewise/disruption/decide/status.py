"""Status of a budget: what the leader publishes and webhooks judge by, as a value and as the API document. Pure.

The ledger in it is the only record of charges. Leader and webhooks both write the whole document with a check of the
resourceVersion, so `charged` computes all numbers that follow from a charge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from zonewise.disruption.decide.allowance import (
    NO_NUMBERS,
    BudgetAllowance,
    DomainAllowance,
    DomainCount,
    DomainFill,
    charge,
    compute_allowance,
)
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey
from zonewise.disruption.decide.count import Departure, OwnerSlots, PodCount, count, owner_slots_of
from zonewise.disruption.decide.ledger import MOST_ENTRIES, ChargeSource, Ledger, LedgerEntry, ledger_of, refund
from zonewise.disruption.decide.ledger import charge as add
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, Workloads
from zonewise.objects.policy import (
    BudgetCharge,
    StatusCondition,
    TopologyDisruptionBudget,
    TopologyDisruptionBudgetStatus,
    charge_lines,
)
from zonewise.objects.stored import NewerError, require_known

DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
SYNC_FAILED: Final = "SyncFailed"

VERSION: Final = 1
"""Of the status with its ledger, see `objects.stored`."""
_DOMAINS_NAMED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStatus:
    """`observed_generation`: the generation of the spec that was counted; 0 before the first count.

    `refusal`: why the stored status must be left as it is; nothing else is known then.
    """

    observed_generation: int = 0
    numbers: BudgetAllowance = NO_NUMBERS
    ledger: Ledger = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()
    conditions: tuple[StatusCondition, ...] = ()
    refusal: str = ""

    def condition(self, condition_type: str) -> StatusCondition | None:
        return next((condition for condition in self.conditions if condition.type == condition_type), None)


def published(
    budget: Budget,
    pod_count: PodCount,
    ledger: Ledger,
    before: Sequence[StatusCondition],
    now: str,
    more: Iterable[StatusCondition] = (),
) -> PublishedStatus:
    """The status after a count. `more`: further conditions. A transition time changes only with its status."""
    conditions = (_disruption_allowed(budget, pod_count.numbers), *more)
    return PublishedStatus(
        observed_generation=budget.generation,
        numbers=pod_count.numbers,
        ledger=ledger,
        departures=pod_count.departures,
        conditions=_dated(conditions, before, budget.generation, now),
    )


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a leader remembers of earlier counts, for `count.count`."""

    rule: tuple[object, ...] = ()
    owner_slots: OwnerSlots = field(default_factory=dict)
    use_ledger: bool = False
    slots: Mapping[str, int] | None = None

    def count(
        self, budget: Budget, pods: Iterable[PodFacts], node_domains: NodeDomains, workloads: Workloads, ledger: Ledger
    ) -> PodCount:
        slots, before = self.owner_slots, self.slots
        return count(
            budget, pods, node_domains, workloads, ledger, slots, use_ledger=self.use_ledger, slots_before=before
        )


def recollect(budget: Budget, status: PublishedStatus, memory: Recollection) -> Recollection:
    """What is still valid for this spec: the memory, or at the first count the status.

    Slots belong to one rule. The status of another spec may name other domains in departures and ledger: then missing pods
    count in every domain, unless they are seen terminating. After the first count the slots include what the ledger had.
    """
    rule = (budget.uid, budget.selector, budget.term, budget.split_keys)
    if memory.rule == rule:
        return replace(memory, use_ledger=False, slots=None)
    if budget.generation == status.observed_generation:
        slots = {name: domain.slots for name, domain in status.numbers.domains.items()}
        return Recollection(rule, owner_slots_of(status.departures), use_ledger=True, slots=slots)
    return Recollection(rule)


def charged(
    budget: Budget, status: PublishedStatus, entries: Iterable[LedgerEntry], *, replaced: bool = False
) -> PublishedStatus:
    """The status after charging; other domains may change, too. Charged pods are not charged twice.

    `replaced`: their controllers replace them, so the charges use up no surplus.
    """
    new = {entry.uid: entry for entry in entries if entry.uid not in status.ledger}.values()
    numbers = status.numbers
    for entry in new:
        numbers = charge(budget, numbers, entry.domain, "" if replaced else entry.owner)
    return replace(status, numbers=numbers, ledger=add(status.ledger, new)) if new else status


def restated(budget: Budget, status: PublishedStatus, now: str) -> PublishedStatus:
    """The status after charges with a matching condition, which saves the leader a write."""
    more = [condition for condition in status.conditions if condition.type != DISRUPTION_ALLOWED]
    conditions = (_disruption_allowed(budget, status.numbers), *more)
    return replace(status, conditions=_dated(conditions, status.conditions, budget.generation, now))


def relied_on(status: PublishedStatus, entry: LedgerEntry) -> PublishedStatus:
    """Another client charged the pod. With the new time that client can't refund the charge any more; it can only expire."""
    renewed = replace(status.ledger[entry.uid], time=entry.time)
    return replace(status, ledger={**status.ledger, entry.uid: renewed})


def noted(status: PublishedStatus, entry: LedgerEntry) -> PublishedStatus:
    """In the ledger only: an unhealthy pod does not lower the numbers, but must not count as healthy later."""
    return status if entry.uid in status.ledger else replace(status, ledger=add(status.ledger, [entry]))


def refunded(status: PublishedStatus, uids: Collection[str]) -> PublishedStatus:
    """The status without these charges. The numbers stay low until the leader counts again: only the leader raises them."""
    return replace(status, ledger=refund(status.ledger, uids))


def read(budget: Budget, stored: TopologyDisruptionBudget) -> PublishedStatus:
    """The status of the object. Numbers are taken as published, not computed again."""
    status = stored.status
    if problem := refusal(stored):
        return PublishedStatus(refusal=problem)
    tally = _tally(status)
    domains = {
        domain.name: DomainAllowance(
            domain.name, domain.slots, domain.target, domain.healthy, domain.desired, domain.allowed
        )
        for domain in status.domains
    }
    numbers = BudgetAllowance(
        tally, domains, compute_allowance(budget, tally).outside_surplus if tally.outside else frozenset()
    )
    return PublishedStatus(
        observed_generation=status.observed_generation,
        numbers=numbers,
        ledger=ledger_of(map(_entry, charge_lines(status.charges))),
        departures=tuple(
            Departure(line.owner, BudgetDomainKey(line.domain, not line.outside), line.missing, line.slots)
            for line in status.departures
        ),
        conditions=status.conditions,
    )


def refusal(stored: TopologyDisruptionBudget) -> str:
    """Why the status must be left as it is: a newer release wrote it. Empty if it need not."""
    try:
        require_known(stored.status.version, VERSION, "its status")
    except NewerError as error:
        return str(error)
    return ""


def document(status: PublishedStatus) -> dict[str, Any]:
    """For the API, always with every field, so that it may be sent whole or as a merge patch."""
    numbers, tally = status.numbers, status.numbers.tally
    return {
        "version": VERSION,
        "observedGeneration": status.observed_generation,
        "expectedPods": tally.expected,
        "uncoveredPods": tally.uncovered,
        "unmanagedPods": tally.unmanaged,
        "unplacedPods": tally.unplaced,
        "currentHealthy": numbers.healthy,
        "desiredHealthy": numbers.desired,
        "disruptionsAllowed": numbers.allowed,
        "allowedByDomain": allowed_by_domain(numbers),
        "domains": [_domain_line(domain) for domain in numbers.domains.values()],
        "surplus": [{"owner": owner, "pods": pods} for owner, pods in sorted(tally.surplus.items()) if pods],
        "outside": [{"domain": domain, "slots": slots} for domain, slots in sorted(tally.outside.items())],
        "charges": "".join([entry.text or _text(entry) for entry in status.ledger.values()]),
        "departures": [_departure_line(departure) for departure in status.departures],
        "conditions": [_condition_line(condition) for condition in status.conditions],
    }


def allowed_by_domain(numbers: BudgetAllowance) -> str:
    """For a column: `eu-1a=1 eu-1b=0 eu-1c=1`, or a summary where the domains are many."""
    domains = numbers.domains.values()
    if len(domains) <= _DOMAINS_NAMED:
        return " ".join(f"{domain.name}={domain.allowed}" for domain in domains)
    open_domains = sum(domain.allowed > 0 for domain in domains)
    return f"{numbers.allowed} in {open_domains} of {len(domains)} domains"


def _disruption_allowed(budget: Budget, numbers: BudgetAllowance) -> StatusCondition:
    if failure := numbers.tally.failure:
        return StatusCondition(type=DISRUPTION_ALLOWED, status="False", reason=SYNC_FAILED, message=failure)
    if numbers.allowed:
        return StatusCondition(
            type=DISRUPTION_ALLOWED, status="True", reason="SufficientPods", message=allowed_by_domain(numbers)
        )
    message = f"{budget.limit} leaves no pod to spare"
    return StatusCondition(type=DISRUPTION_ALLOWED, status="False", reason="InsufficientPods", message=message)


def _dated(
    conditions: Iterable[StatusCondition], before: Sequence[StatusCondition], generation: int, now: str
) -> tuple[StatusCondition, ...]:
    since = {(condition.type, condition.status): condition.last_transition_time for condition in before}
    return tuple(
        StatusCondition(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            last_transition_time=since.get((condition.type, condition.status)) or now,
            observed_generation=generation,
        )
        for condition in conditions
    )


def _tally(status: TopologyDisruptionBudgetStatus) -> DomainCount:
    return DomainCount(
        expected=status.expected_pods,
        uncovered=status.uncovered_pods,
        unmanaged=status.unmanaged_pods,
        unplaced=status.unplaced_pods,
        domains={domain.name: DomainFill(domain.slots, domain.healthy) for domain in status.domains},
        surplus={line.owner: line.pods for line in status.surplus},
        outside={line.domain: line.slots for line in status.outside},
        failure=next((condition.message for condition in status.conditions if condition.reason == SYNC_FAILED), ""),
    )


@lru_cache(maxsize=2 * MOST_ENTRIES)
def _entry(text: str) -> LedgerEntry:
    """Cached, since most lines of a ledger were in the version before."""
    line = BudgetCharge.parse(text)
    source = ChargeSource(line.source) if line.source in list(ChargeSource) else ChargeSource.EVICTION
    return LedgerEntry(
        uid=line.uid,
        name=line.name,
        domain=line.domain,
        owner=line.owner,
        time=line.time,
        source=source,
        confirmed=line.confirmed,
        closed=line.closed,
    )


def _domain_line(domain: DomainAllowance) -> dict[str, Any]:
    return {
        "name": domain.name,
        "slots": domain.slots,
        "target": domain.target,
        "healthy": domain.healthy,
        "desired": domain.desired,
        "allowed": domain.allowed,
    }


def _text(entry: LedgerEntry) -> str:
    words = (entry.uid, entry.name, entry.domain, entry.owner, entry.time, str(entry.source))
    line = BudgetCharge(*words, entry.confirmed, entry.closed)
    text = f"{line}\n"
    object.__setattr__(entry, "text", text)  # derived from the other fields, so the value stays the same
    return text


def _departure_line(departure: Departure) -> dict[str, Any]:
    line = {
        "owner": departure.owner,
        "domain": departure.domain_key.domain,
        "missing": departure.missing,
        "slots": departure.slots,
    }
    return line if departure.domain_key.covered else {**line, "outside": True}


def _condition_line(condition: StatusCondition) -> dict[str, Any]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
        "observedGeneration": condition.observed_generation,
    }
