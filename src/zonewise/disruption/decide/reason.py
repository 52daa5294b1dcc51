"""Reason of a verdict: one value for the 429, `explain`, events, metrics and logs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zonewise import topology


class DisruptionCode(StrEnum):
    """Stable: users write alerts on these. Codes are added, and never change their meaning."""

    # Allowed, and nothing is charged.
    NOT_ENFORCED = "NotEnforced"
    NOT_APPLIED = "NotApplied"
    NOT_RUNNING = "NotRunning"
    NODE_GONE = "NodeGone"
    NOT_COVERED = "NotCovered"
    ALREADY_CHARGED = "AlreadyCharged"
    NOT_READY = "NotReady"

    # Allowed, and charged.
    WITHIN_BUDGET = "WithinBudget"

    # Refused.
    NOT_OBSERVED = "NotObserved"
    SYNC_FAILED = "SyncFailed"
    STATUS_NEWER = "StatusNewer"
    DOMAIN_NOT_COUNTED = "DomainNotCounted"
    FROZEN = "Frozen"
    NO_CONTROLLER = "NoController"
    OTHER_DOMAINS_DISRUPTED = "OtherDomainsDisrupted"
    KEEPS_SPREAD = "KeepsSpread"
    TOO_FEW_HEALTHY = "TooFewHealthy"
    LEDGER_FULL = "LedgerFull"
    CHARGE_UNUSED = "ChargeUnused"
    TOO_MANY_BUDGETS = "TooManyBudgets"


@dataclass(frozen=True, slots=True)
class DisruptionReason(topology.Reason):
    """`remedy` is what would change the answer; empty if nothing is refused."""

    code: DisruptionCode
    remedy: str = ""
