"""Ledger of one budget: disruptions that are charged and not over yet, and how the entries age. Pure.

An entry is made before a pod is evicted. Its key is the pod's uid, since StatefulSets reuse names. It is confirmed once
the pod leaves. It is dropped some time after the pod is gone, so that a webhook with stale caches never finds a pod that
looks healthy and is not charged. Ages are measured on the leader's own monotonic clock from what it observed itself,
never from written times: wall clocks jump.

The entry of a pod that stays is closed after a moment: no further request may rely on it, so asking again prolongs
nothing. From then on it lasts as long as an API server may still work on a request that was allowed before, and is given
up when the pod, read once more, still stays. docs/decisions/0007 has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from zonewise.disruption.decide.pods import PodFacts

MOST_ENTRIES: Final = 2000
GONE_SECONDS: Final = 15.0
OPEN_SECONDS: Final = 10.0
"""How long further requests for a pod may rely on its charge: kubectl asks again after 5 s."""
OWN_OPEN_SECONDS: Final = 60.0
"""The same for charges of the leader itself, whose evictions back off."""
REQUEST_SECONDS: Final = 60.0
"""How long a request may live: the default of --request-timeout of API servers."""
_SLACK_SECONDS: Final = 5.0
UNSEEN_SECONDS: Final = 120.0


class ChargeSource(StrEnum):
    EVICTION = "Eviction"
    DELETE = "Delete"
    ROLLOUT = "Rollout"
    SCALE_DOWN = "ScaleDown"


_OF_WEBHOOKS: Final = frozenset({ChargeSource.EVICTION, ChargeSource.DELETE})


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
    closed: bool = False
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
    CLOSED = "Closed"
    GRANTED = "Granted"
    LEAVING = "Leaving"
    GONE = "Gone"
    NEVER_SEEN = "NeverSeen"


class PodSighting(NamedTuple):
    standing: ChargeStanding
    since_seconds: float


Sightings = Mapping[str, PodSighting]
"""The leader's observations by uid. A new leader starts without any: every entry then waits its full time again.

Ended charges are remembered as long as they are in the ledger, since not every count is published.
"""


@dataclass(frozen=True, slots=True)
class UpdatedLedger:
    """`given_up`: charged pods that stayed. `doubtful`: those that seem to, and must be read first.

    `next_seconds`: when the next entry ages.
    """

    ledger: Ledger
    sightings: Sightings
    given_up: tuple[LedgerEntry, ...] = ()
    doubtful: tuple[LedgerEntry, ...] = ()
    next_seconds: float | None = None


def update_ledger(
    ledger: Ledger,
    sightings: Sightings,
    pods: Mapping[str, PodFacts],
    now_seconds: float,
    *,
    read: Collection[str] = (),
    request_seconds: float = REQUEST_SECONDS,
) -> UpdatedLedger:
    """The ledger after observing its pods (by uid; only charged ones matter). `now_seconds` is of a monotonic clock.

    `read` has the uids of doubtful pods that stay, as the API server has them.
    """
    lifetimes = {
        ChargeStanding.CLOSED: request_seconds + _SLACK_SECONDS,
        ChargeStanding.NEVER_SEEN: max(UNSEEN_SECONDS, request_seconds + _SLACK_SECONDS),
        ChargeStanding.GONE: GONE_SECONDS,
    }
    kept: dict[str, LedgerEntry] = {}
    observed: dict[str, PodSighting] = {}
    given_up, doubtful, changes = list[LedgerEntry](), list[LedgerEntry](), list[float]()
    for uid, entry in ledger.items():
        sighting = observed[uid] = _observe(entry, pods.get(uid), sightings.get(uid), now_seconds)
        end = sighting.since_seconds + lifetimes.get(sighting.standing, float("inf"))
        stays = sighting.standing is ChargeStanding.CLOSED
        if now_seconds >= end and (not stays or uid in read):
            given_up += [entry] if stays else []
            continue
        if now_seconds >= end:
            doubtful.append(entry)
        kept[uid] = _aged(entry, sighting, now_seconds)
        changes += [change for change in (_closes(entry, sighting), end) if now_seconds < change < float("inf")]
    return UpdatedLedger(kept, observed, tuple(given_up), tuple(doubtful), min(changes, default=None))


def is_staying(entry: LedgerEntry, stored: PodFacts | None) -> bool:
    """Whether the charged pod, as the API server has it, neither left nor leaves; None if no pod has its name."""
    return stored is not None and stored.uid == entry.uid and not (stored.terminating or stored.disruption_target)


def _observe(entry: LedgerEntry, pod: PodFacts | None, last: PodSighting | None, now_seconds: float) -> PodSighting:
    standing = _standing(entry, pod, last)
    return last if last is not None and last.standing is standing else PodSighting(standing, now_seconds)


def _standing(entry: LedgerEntry, pod: PodFacts | None, last: PodSighting | None) -> ChargeStanding:
    if pod is None:
        never_seen = last is None or last.standing is ChargeStanding.NEVER_SEEN
        return ChargeStanding.NEVER_SEEN if never_seen else ChargeStanding.GONE
    if pod.terminating or pod.disruption_target:
        return ChargeStanding.LEAVING
    # Its controller may use the grant at any time, so the charge lasts as long as the grant.
    if pod.granted:
        return ChargeStanding.GRANTED
    return ChargeStanding.CLOSED if entry.closed else ChargeStanding.WAITING


def _aged(entry: LedgerEntry, sighting: PodSighting, now_seconds: float) -> LedgerEntry:
    aged = _with_confirmation(entry, sighting.standing)
    return replace(aged, closed=True) if now_seconds >= _closes(entry, sighting) else aged


def _closes(entry: LedgerEntry, sighting: PodSighting) -> float:
    if sighting.standing is not ChargeStanding.WAITING:
        return float("inf")
    return sighting.since_seconds + (OPEN_SECONDS if entry.source in _OF_WEBHOOKS else OWN_OPEN_SECONDS)


def _with_confirmation(entry: LedgerEntry, standing: ChargeStanding) -> LedgerEntry:
    """A confirmation lasts once the pod is gone; a pod that still exists and does not leave undoes it."""
    absent = standing in {ChargeStanding.GONE, ChargeStanding.NEVER_SEEN}
    confirmed = entry.confirmed if absent else standing is ChargeStanding.LEAVING
    return entry if entry.confirmed is confirmed else replace(entry, confirmed=confirmed)
