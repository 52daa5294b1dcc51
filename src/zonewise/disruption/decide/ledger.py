"""Ledger of one budget: disruptions that are charged and not over yet, and how the entries age. Pure.

An entry is made before a pod is evicted. Its key is the pod's uid, since StatefulSets reuse names. It is confirmed once
the pod leaves, and given up if the pod stays. It is dropped some time after the pod is gone, so that a webhook with stale
caches never finds a pod that looks healthy and is not charged. Ages are measured on the leader's own monotonic clock
from what it observed itself, never from written times: wall clocks jump.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from zonewise.disruption.decide.pods import PodFacts

MOST_ENTRIES: Final = 2000
GONE_SECONDS: Final = 15.0
UNCONFIRMED_SECONDS: Final = 120.0


class ChargeSource(StrEnum):
    EVICTION = "Eviction"
    DELETE = "Delete"
    ROLLOUT = "Rollout"
    SCALE_DOWN = "ScaleDown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """`owner` is the uid of the pod's top-level controller; `time` is for people, in the API's format."""

    uid: str
    name: str = ""
    domain: str = ""
    owner: str = ""
    time: str = ""
    source: ChargeSource = ChargeSource.EVICTION
    confirmed: bool = False
    text: str = field(default="", init=False, repr=False, compare=False)
    """Its line in the status, cached: a long ledger is written again with every charge."""


Ledger = Mapping[str, LedgerEntry]
"""By uid, oldest first."""


def ledger_of(entries: Iterable[LedgerEntry]) -> Ledger:
    return {entry.uid: entry for entry in entries}


def charge(ledger: Ledger, entries: Iterable[LedgerEntry]) -> Ledger:
    """With the entries added; an existing entry of the same pod stays as it is."""
    added = {entry.uid: entry for entry in entries if entry.uid not in ledger}
    return {**ledger, **added}


def refund(ledger: Ledger, uids: Collection[str]) -> Ledger:
    return {uid: entry for uid, entry in ledger.items() if uid not in uids}


class ChargeStanding(StrEnum):
    """What the leader observed of a charged pod."""

    WAITING = "Waiting"
    GRANTED = "Granted"
    LEAVING = "Leaving"
    GONE = "Gone"
    NEVER_SEEN = "NeverSeen"


class PodSighting(NamedTuple):
    """`charged_at` is the time in the entry. It only distinguishes a charge from a later one of the same pod."""

    standing: ChargeStanding
    since_seconds: float
    charged_at: str = ""


Sightings = Mapping[str, PodSighting]
"""The leader's observations by uid. A new leader starts without any: every entry then waits its full time again.

Ended charges are remembered as long as they are in the ledger, since not every count is published.
"""

_LIFETIME_SECONDS: Final = {
    ChargeStanding.WAITING: UNCONFIRMED_SECONDS,
    ChargeStanding.NEVER_SEEN: UNCONFIRMED_SECONDS,
    ChargeStanding.GONE: GONE_SECONDS,
}


@dataclass(frozen=True, slots=True)
class UpdatedLedger:
    """`given_up`: charged pods that stayed. `next_seconds`: when the next entry ages."""

    ledger: Ledger
    sightings: Sightings
    given_up: tuple[LedgerEntry, ...] = ()
    next_seconds: float | None = None


def update_ledger(
    ledger: Ledger, sightings: Sightings, pods: Mapping[str, PodFacts], now_seconds: float
) -> UpdatedLedger:
    """The ledger after observing its pods (by uid; only charged ones matter). `now_seconds` is of a monotonic clock."""
    kept: dict[str, LedgerEntry] = {}
    observed: dict[str, PodSighting] = {}
    given_up: list[LedgerEntry] = []
    for uid, entry in ledger.items():
        sighting = observed[uid] = _observe(entry, pods.get(uid), sightings.get(uid), now_seconds)
        if now_seconds < _end_seconds(sighting):
            kept[uid] = _with_confirmation(entry, sighting.standing)
        elif sighting.standing is ChargeStanding.WAITING:
            given_up.append(entry)
    ends = [end for uid in kept if (end := _end_seconds(observed[uid])) != float("inf")]
    return UpdatedLedger(kept, observed, tuple(given_up), min(ends, default=None))


def _observe(entry: LedgerEntry, pod: PodFacts | None, last: PodSighting | None, now_seconds: float) -> PodSighting:
    before = last if last is not None and last.charged_at == entry.time else None
    standing = _standing(pod, before)
    if before is not None and before.standing is standing:
        return before
    return PodSighting(standing, now_seconds, entry.time)


def _standing(pod: PodFacts | None, before: PodSighting | None) -> ChargeStanding:
    if pod is None:
        never_seen = before is None or before.standing is ChargeStanding.NEVER_SEEN
        return ChargeStanding.NEVER_SEEN if never_seen else ChargeStanding.GONE
    if pod.terminating or pod.disruption_target:
        return ChargeStanding.LEAVING
    # Its controller may use the grant at any time, so the charge lasts as long as the grant.
    return ChargeStanding.GRANTED if pod.granted else ChargeStanding.WAITING


def _end_seconds(sighting: PodSighting) -> float:
    return sighting.since_seconds + _LIFETIME_SECONDS.get(sighting.standing, float("inf"))


def _with_confirmation(entry: LedgerEntry, standing: ChargeStanding) -> LedgerEntry:
    """A confirmation lasts once the pod is gone; a pod that still exists and does not leave undoes it."""
    absent = standing in {ChargeStanding.GONE, ChargeStanding.NEVER_SEEN}
    confirmed = entry.confirmed if absent else standing is ChargeStanding.LEAVING
    return entry if entry.confirmed is confirmed else replace(entry, confirmed=confirmed)
