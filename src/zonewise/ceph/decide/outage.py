"""When a domain counts as failed, and when as back: the automatic mode of takeovers. Pure; times are arguments.

A domain failed when each of its nodes was not ready for a set time, and it is back when enough of its nodes were ready
for a longer one, so that a domain that comes and goes moves nothing. Where more domains seem to have failed than are
left, the observer is the likelier one to be cut off: then nothing is taken over without a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zonewise.ceph.decide.domains import DomainLabels
from zonewise.ceph.decide.takeover import ALL, TakeoverDomain, TakeoverMap
from zonewise.topology import Reason


@dataclass(frozen=True, slots=True)
class OutageTiming:
    """`back_share` of a domain's nodes must be ready for it to be back."""

    takeover_after_seconds: float = 300.0
    giveback_after_seconds: float = 600.0
    back_share: float = 0.5


@dataclass(frozen=True, slots=True)
class NodeCount:
    """The nodes of a domain. `around` is the next wider domain, empty if there is none."""

    nodes: int
    ready: int
    around: str = ""


class TakeoverAction(StrEnum):
    TAKE_OVER = "TakeOver"
    GIVE_BACK = "GiveBack"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class OutageVerdict:
    """What should become of a domain. `targets` are those that take it over, or all."""

    act: TakeoverAction
    domain: TakeoverDomain
    reason: Reason
    targets: tuple[str, ...] = ()


def count(nodes: Iterable[tuple[Mapping[str, str], bool]], labels: DomainLabels, name: str) -> dict[str, NodeCount]:
    """By domain of the label `name`: from the labels of nodes and whether they are ready."""
    found: dict[str, NodeCount] = {}
    for node_labels, ready in nodes:
        segments = labels.segments(node_labels)
        at = next((place for place, segment in enumerate(segments) if segment[0] == name), None)
        if at is None:
            continue
        domain = segments[at][1]
        before = found.get(domain, NodeCount(0, 0))
        around = before.around or ("=".join(segments[at - 1]) if at else "")
        found[domain] = NodeCount(before.nodes + 1, before.ready + ready, around)
    return found


class Outages:
    """What was seen of the domains of one label, and since when. Forgets with its process: then it waits anew."""

    def __init__(self, name: str, patience: OutageTiming) -> None:
        self._name = name
        self._patience = patience
        self._counts: dict[str, NodeCount] = {}
        self._down_since: dict[str, float] = {}
        self._back_since: dict[str, float] = {}

    def observe(self, counts: Mapping[str, NodeCount], now: float) -> None:
        """A domain whose last node is removed while it is down stays down; who removes nodes that work means it."""
        for domain in self._down_since.keys() - counts.keys():
            gone = self._counts[domain]
            self._counts[domain] = NodeCount(0, 0, gone.around)
        for domain in self._counts.keys() - counts.keys() - self._down_since.keys():
            del self._counts[domain]
            self._back_since.pop(domain, None)
        for domain, seen in counts.items():
            self._counts[domain] = seen
            _mark(self._down_since, domain, now, holds=seen.ready == 0)
            _mark(self._back_since, domain, now, holds=seen.ready > 0 and seen.ready >= self._enough(seen))

    def down(self) -> list[TakeoverDomain]:
        """Those without a ready node, however short."""
        return [TakeoverDomain(domain, self._name) for domain in self._down_since]

    def judge(self, takeovers: TakeoverMap, now: float) -> list[OutageVerdict]:
        failed = sorted(domain for domain in self._down_since if self._has_failed(domain, now))
        left = sorted(domain for domain in self._counts if domain not in self._down_since)
        verdicts = [self._take_over(domain, failed, left) for domain in failed if not self._entry(takeovers, domain)]
        back = sorted(domain for domain in self._back_since if self._is_back(domain, now))
        entries = ((domain, self._entry(takeovers, domain)) for domain in back)
        given = [
            OutageVerdict(TakeoverAction.GIVE_BACK, entry, self._back_reason(domain))
            for domain, entry in entries
            if entry
        ]
        return [*verdicts, *given]

    def next_look_seconds(self, now: float) -> float | None:
        """When a verdict may change though nothing does."""
        times = [since + self._patience.takeover_after_seconds for since in self._down_since.values()]
        times += [since + self._patience.giveback_after_seconds for since in self._back_since.values()]
        return min((time - now for time in times if time > now), default=None)

    def _entry(self, takeovers: TakeoverMap, domain: str) -> TakeoverDomain | None:
        segments = ((self._name, domain),)
        return next((source for source in takeovers.entries if source.holds(segments)), None)

    def _has_failed(self, domain: str, now: float) -> bool:
        return now - self._down_since[domain] >= self._patience.takeover_after_seconds

    def _is_back(self, domain: str, now: float) -> bool:
        return now - self._back_since[domain] >= self._patience.giveback_after_seconds

    def _enough(self, seen: NodeCount) -> float:
        return seen.nodes * self._patience.back_share

    def _take_over(self, domain: str, failed: Sequence[str], left: Sequence[str]) -> OutageVerdict:
        named = TakeoverDomain(domain, self._name)
        seen = self._counts[domain]
        facts = {"domain": str(named), "nodes": str(seen.nodes), "failed": str(len(failed)), "left": str(len(left))}
        if len(failed) > len(left):
            sentence = (
                f"{named} seems to have failed, but so do {len(failed)} of {len(failed) + len(left)} domains: it is more"
                " likely that this cluster's control plane is cut off; nothing is taken over unless you say so"
            )
            return OutageVerdict(TakeoverAction.HOLD, named, Reason("MostDomainsFailed", sentence, facts))
        near = tuple(other for other in left if self._counts[other].around == seen.around)
        targets = tuple(str(TakeoverDomain(other, self._name)) for other in near) or (ALL,)
        what = f"none of its {seen.nodes} nodes was ready" if seen.nodes else "it has no node left"
        sentence = f"{named} failed: {what} for {self._patience.takeover_after_seconds:g} s"
        return OutageVerdict(TakeoverAction.TAKE_OVER, named, Reason("DomainFailed", sentence, facts), targets)

    def _back_reason(self, domain: str) -> Reason:
        seen = self._counts[domain]
        named = TakeoverDomain(domain, self._name)
        sentence = (
            f"{named} is back: {seen.ready} of its {seen.nodes} nodes are ready, and enough of them were for"
            f" {self._patience.giveback_after_seconds:g} s"
        )
        return Reason(
            "DomainBack", sentence, {"domain": str(named), "nodes": str(seen.nodes), "ready": str(seen.ready)}
        )


def _mark(since: dict[str, float], domain: str, now: float, *, holds: bool) -> None:
    if holds:
        since.setdefault(domain, now)
    else:
        since.pop(domain, None)
