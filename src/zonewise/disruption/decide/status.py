"""A budget's status: what the leader publishes and webhooks judge by, as one value and as the document in the API. Pure.

The ledger in it is the only truth about charges. Leader and webhooks both write the whole document guarded by
resourceVersion, so `charged` gives all numbers that follow from a charge at once.
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
    work_out,
)
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey
from zonewise.disruption.decide.count import Departure, Places, PodCount, count, places_of
from zonewise.disruption.decide.ledger import MOST_ENTRIES, ChargeSource, Ledger, LedgerEntry, ledger_of, refund
from zonewise.disruption.decide.ledger import charge as add
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, Workloads
from zonewise.objects.policy import (
    BudgetCharge,
    StatusCondition,
    TopologyDisruptionBudget,
    TopologyDisruptionBudgetStatus,
)

DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
SYNC_FAILED: Final = "SyncFailed"

_DOMAINS_NAMED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStatus:
    """`observed_generation` is that of the spec the numbers were counted by; 0 before the first count."""

    observed_generation: int = 0
    numbers: BudgetAllowance = NO_NUMBERS
    ledger: Ledger = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()
    conditions: tuple[StatusCondition, ...] = ()

    def condition(self, condition_type: str) -> StatusCondition | None:
        return next((known for known in self.conditions if known.type == condition_type), None)

    @property
    def failure(self) -> str:
        """Why nothing could be counted; empty where all is well."""
        condition = self.condition(DISRUPTION_ALLOWED)
        return condition.message if condition is not None and condition.reason == SYNC_FAILED else ""


def published(
    budget: Budget,
    census: PodCount,
    ledger: Ledger,
    before: Sequence[StatusCondition],
    now: str,
    others: Iterable[StatusCondition] = (),
) -> PublishedStatus:
    """What the leader says after a count. `others` are further conditions; a time changes only with its status."""
    stated = (_disruption_allowed(budget, census.numbers), *others)
    return PublishedStatus(
        observed_generation=budget.generation,
        numbers=census.numbers,
        ledger=ledger,
        departures=census.departures,
        conditions=_dated(stated, before, budget.generation, now),
    )


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a leader knows of earlier counts, for `census.count`."""

    rule: tuple[object, ...] = ()
    places: Places = field(default_factory=dict)
    ledger_tells: bool = False
    slots: Mapping[str, int] | None = None

    def count(
        self, budget: Budget, pods: Iterable[PodFacts], atlas: NodeDomains, workloads: Workloads, ledger: Ledger
    ) -> PodCount:
        tells, slots = self.ledger_tells, self.slots
        return count(budget, pods, atlas, workloads, ledger, self.places, ledger_tells=tells, slots_before=slots)


def recollect(budget: Budget, status: PublishedStatus, known: Recollection) -> Recollection:
    """What holds for this spec of what is `known`; at first sight, of what stands in the status.

    Places are those of one rule. A status of another spec may name other domains, in departures and ledger: what is
    missing then counts everywhere, unless it is seen leaving. Once counted, places know what the ledger told.
    """
    rule = (budget.uid, budget.selector, budget.term, budget.split_keys)
    if known.rule == rule:
        return replace(known, ledger_tells=False, slots=None)
    if budget.generation == status.observed_generation:
        slots = {name: domain.slots for name, domain in status.numbers.domains.items()}
        return Recollection(rule, places_of(status.departures), ledger_tells=True, slots=slots)
    return Recollection(rule)


def charged(
    budget: Budget, status: PublishedStatus, entries: Iterable[LedgerEntry], *, replaced: bool = False
) -> PublishedStatus:
    """The status after charging: own domain less, others too where that follows. Charged pods are not charged twice.

    `replaced`: their controllers give up none, so none of them is one of those that an owner has too many.
    """
    new = {entry.uid: entry for entry in entries if entry.uid not in status.ledger}.values()
    numbers = status.numbers
    for entry in new:
        numbers = charge(budget, numbers, entry.domain, "" if replaced else entry.owner)
    return replace(status, numbers=numbers, ledger=add(status.ledger, new)) if new else status


def restated(budget: Budget, status: PublishedStatus, now: str) -> PublishedStatus:
    """After charges, with a condition that says what the numbers say: else that would take the leader a write more."""
    others = [known for known in status.conditions if known.type != DISRUPTION_ALLOWED]
    stated = (_disruption_allowed(budget, status.numbers), *others)
    return replace(status, conditions=_dated(stated, status.conditions, budget.generation, now))


def relied_on(status: PublishedStatus, entry: LedgerEntry) -> PublishedStatus:
    """Somebody else charged its pod, and can't take that back any more now that its time is another: it can only run out."""
    renewed = replace(status.ledger[entry.uid], time=entry.time)
    return replace(status, ledger={**status.ledger, entry.uid: renewed})


def noted(status: PublishedStatus, entry: LedgerEntry) -> PublishedStatus:
    """In the ledger alone: who is not healthy takes nothing from the numbers, but must not be counted if it becomes so."""
    return status if entry.uid in status.ledger else replace(status, ledger=add(status.ledger, [entry]))


def refunded(status: PublishedStatus, uids: Collection[str]) -> PublishedStatus:
    """The status without these charges. The numbers stay low until the leader counts again: only it may raise them."""
    return replace(status, ledger=refund(status.ledger, uids))


def read(budget: Budget, written: TopologyDisruptionBudget) -> PublishedStatus:
    """What stands in the object. Numbers are taken as published, not worked out again."""
    status = written.status
    tally = _tally(status)
    domains = {
        domain.name: DomainAllowance(
            domain.name, domain.slots, domain.target, domain.healthy, domain.desired, domain.allowed
        )
        for domain in status.domains
    }
    numbers = BudgetAllowance(tally, domains, work_out(budget, tally).outside_surplus if tally.outside else frozenset())
    return PublishedStatus(
        observed_generation=status.observed_generation,
        numbers=numbers,
        ledger=ledger_of(_entry(line) for line in status.charges.splitlines() if line),
        departures=tuple(
            Departure(line.owner, BudgetDomainKey(line.domain, not line.outside), line.missing, line.slots)
            for line in status.departures
        ),
        conditions=status.conditions,
    )


def document(status: PublishedStatus) -> dict[str, Any]:
    """For the API: always with every field, so that it may be sent whole or as a merge patch."""
    numbers, tally = status.numbers, status.numbers.tally
    return {
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
    if numbers.allowed:
        return StatusCondition(
            type=DISRUPTION_ALLOWED, status="True", reason="SufficientPods", message=allowed_by_domain(numbers)
        )
    message = f"{budget.limit} leaves no pod to spare"
    return StatusCondition(type=DISRUPTION_ALLOWED, status="False", reason="InsufficientPods", message=message)


def _dated(
    stated: Iterable[StatusCondition], before: Sequence[StatusCondition], generation: int, now: str
) -> tuple[StatusCondition, ...]:
    since = {(known.type, known.status): known.last_transition_time for known in before}
    return tuple(
        StatusCondition(
            type=known.type,
            status=known.status,
            reason=known.reason,
            message=known.message,
            last_transition_time=since.get((known.type, known.status)) or now,
            observed_generation=generation,
        )
        for known in stated
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
    )


@lru_cache(maxsize=2 * MOST_ENTRIES)
def _entry(text: str) -> LedgerEntry:
    """Most lines of a ledger stood in the version before."""
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
    line = BudgetCharge(
        entry.uid, entry.name, entry.domain, entry.owner, entry.time, str(entry.source), entry.confirmed
    )
    text = f"{line}\n"
    object.__setattr__(entry, "text", text)  # follows from the rest of it, so it stays the same value
    return text


def _departure_line(departure: Departure) -> dict[str, Any]:
    line = {
        "owner": departure.owner,
        "domain": departure.place.domain,
        "missing": departure.missing,
        "slots": departure.slots,
    }
    return line if departure.place.covered else {**line, "outside": True}


def _condition_line(condition: StatusCondition) -> dict[str, Any]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
        "observedGeneration": condition.observed_generation,
    }
