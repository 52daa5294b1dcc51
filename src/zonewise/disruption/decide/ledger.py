"""Which disruptions have been promised and not yet happened: the ledger of one budget, and how its entries age. Pure.

An entry is made before a pod is evicted and keyed by the pod's uid, since a StatefulSet gives a name again. It is
confirmed once the pod is seen leaving, dropped some time after the pod is gone, so that a webhook whose view lags never
meets a pod that looks healthy and is not charged, and given up when nothing came of it. Ages are counted on the
leader's own steady clock from what it saw itself, never from the times written down: clocks of machines jump.
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
    """`owner` is the uid of the pod's top-level controller; `time` is for people, as the API writes times."""

    uid: str
    name: str = ""
    domain: str = ""
    owner: str = ""
    time: str = ""
    source: ChargeSource = ChargeSource.EVICTION
    confirmed: bool = False
    text: str = field(default="", init=False, repr=False, compare=False)
    """Its line in the status once somebody has worked it out: a long ledger is written again with every charge."""


Ledger = Mapping[str, LedgerEntry]
"""By uid, oldest first."""


def ledger_of(entries: Iterable[LedgerEntry]) -> Ledger:
    return {entry.uid: entry for entry in entries}


def charge(ledger: Ledger, entries: Iterable[LedgerEntry]) -> Ledger:
    """With the entries added; one whose pod is charged already stays as it is, in its place."""
    added = {entry.uid: entry for entry in entries if entry.uid not in ledger}
    return {**ledger, **added}


def refund(ledger: Ledger, uids: Collection[str]) -> Ledger:
    return {uid: entry for uid, entry in ledger.items() if uid not in uids}


class ChargeStanding(StrEnum):
    """What the leader saw of a charged pod."""

    WAITING = "Waiting"
    GRANTED = "Granted"
    LEAVING = "Leaving"
    GONE = "Gone"
    NEVER_SEEN = "NeverSeen"


class PodSighting(NamedTuple):
    """`charged_at` is the time written in the entry: it tells a charge from a later one of the same pod, nothing more."""

    standing: ChargeStanding
    since_seconds: float
    charged_at: str = ""


Sightings = Mapping[str, PodSighting]
"""The leader's memory, by uid. A new leader starts with none: every entry then waits its full time again.

What has ended is remembered as long as it stands in the ledger: not every count is published.
"""

_LASTS_SECONDS: Final = {
    ChargeStanding.WAITING: UNCONFIRMED_SECONDS,
    ChargeStanding.NEVER_SEEN: UNCONFIRMED_SECONDS,
    ChargeStanding.GONE: GONE_SECONDS,
}


@dataclass(frozen=True, slots=True)
class UpdatedLedger:
    """`given_up` are pods that stayed though they were charged; look again at `next_seconds` if nothing wakes before."""

    ledger: Ledger
    sightings: Sightings
    given_up: tuple[LedgerEntry, ...] = ()
    next_seconds: float | None = None


def tend(ledger: Ledger, sightings: Sightings, pods: Mapping[str, PodFacts], now_seconds: float) -> UpdatedLedger:
    """The ledger after looking at its pods (by uid, only charged ones matter) at a time of a steady clock."""
    kept: dict[str, LedgerEntry] = {}
    seen: dict[str, PodSighting] = {}
    given_up: list[LedgerEntry] = []
    for uid, entry in ledger.items():
        sighting = seen[uid] = _look(entry, pods.get(uid), sightings.get(uid), now_seconds)
        if now_seconds < _end_seconds(sighting):
            kept[uid] = _with_confirmation(entry, sighting.standing)
        elif sighting.standing is ChargeStanding.WAITING:
            given_up.append(entry)
    ends = [end for uid in kept if (end := _end_seconds(seen[uid])) != float("inf")]
    return UpdatedLedger(kept, seen, tuple(given_up), min(ends, default=None))


def _look(entry: LedgerEntry, pod: PodFacts | None, sighted: PodSighting | None, now_seconds: float) -> PodSighting:
    before = sighted if sighted is not None and sighted.charged_at == entry.time else None
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
    # Its controller may use the grant at any time, so the charge stands as long as the grant does.
    return ChargeStanding.GRANTED if pod.granted else ChargeStanding.WAITING


def _end_seconds(sighting: PodSighting) -> float:
    return sighting.since_seconds + _LASTS_SECONDS.get(sighting.standing, float("inf"))


def _with_confirmation(entry: LedgerEntry, standing: ChargeStanding) -> LedgerEntry:
    """What was confirmed stays so once the pod is gone; a pod that is there after all takes it back."""
    absent = standing in {ChargeStanding.GONE, ChargeStanding.NEVER_SEEN}
    confirmed = entry.confirmed if absent else standing is ChargeStanding.LEAVING
    return entry if entry.confirmed is confirmed else replace(entry, confirmed=confirmed)
