"""Failed domains: when a domain counts as failed or as recovered, for automatic takeovers. Pure; times are arguments.

A domain has failed when none of its nodes was ready for `takeover_after_seconds`. It has recovered when enough of its
nodes were ready for the longer `giveback_after_seconds`, so a domain that flaps moves nothing. If more domains seem to
have failed than are left, the control plane is more likely to be cut off: then nothing is taken over automatically.
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
    """`back_share` of a domain's nodes must be ready for the domain to be back."""

    takeover_after_seconds: float = 300.0
    giveback_after_seconds: float = 600.0
    back_share: float = 0.5


@dataclass(frozen=True, slots=True)
class NodeCount:
    """The nodes of a domain. `parent` is the next wider domain, empty if there is none."""

    nodes: int
    ready: int
    parent: str = ""


class TakeoverAction(StrEnum):
    TAKE_OVER = "TakeOver"
    GIVE_BACK = "GiveBack"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class OutageVerdict:
    """What to do about a domain. `targets` are the domains that take it over, or "all"."""

    action: TakeoverAction
    domain: TakeoverDomain
    reason: Reason
    targets: tuple[str, ...] = ()


def count_nodes(
    nodes: Iterable[tuple[Mapping[str, str], bool]], labels: DomainLabels, name: str
) -> dict[str, NodeCount]:
    """By domain of the label `name`. Each node is a pair of its labels and whether it is ready."""
    counts: dict[str, NodeCount] = {}
    for node_labels, ready in nodes:
        segments = labels.segments(node_labels)
        depth = next((index for index, segment in enumerate(segments) if segment[0] == name), None)
        if depth is None:
            continue
        domain = segments[depth][1]
        before = counts.get(domain, NodeCount(0, 0))
        parent = before.parent or ("=".join(segments[depth - 1]) if depth else "")
        counts[domain] = NodeCount(before.nodes + 1, before.ready + ready, parent)
    return counts


class Outages:
    """Since when the domains of one label are down or back. Not persisted: after a restart all times start again."""

    def __init__(self, name: str, timing: OutageTiming) -> None:
        self._name = name
        self._timing = timing
        self._counts: dict[str, NodeCount] = {}
        self._down_since: dict[str, float] = {}
        self._back_since: dict[str, float] = {}

    def observe(self, counts: Mapping[str, NodeCount], now: float) -> None:
        """A domain stays down if its last node is removed while it is down; a domain that was up is forgotten."""
        for domain in self._down_since.keys() - counts.keys():
            last = self._counts[domain]
            self._counts[domain] = NodeCount(0, 0, last.parent)
        for domain in self._counts.keys() - counts.keys() - self._down_since.keys():
            del self._counts[domain]
            self._back_since.pop(domain, None)
        for domain, count in counts.items():
            self._counts[domain] = count
            _mark(self._down_since, domain, now, holds=count.ready == 0)
            _mark(self._back_since, domain, now, holds=count.ready > 0 and count.ready >= self._enough(count))

    def down(self) -> list[TakeoverDomain]:
        """Domains without a ready node, for however short."""
        return [TakeoverDomain(domain, self._name) for domain in self._down_since]

    def judge(self, takeovers: TakeoverMap, now: float) -> list[OutageVerdict]:
        failed = sorted(domain for domain in self._down_since if self._has_failed(domain, now))
        left = sorted(domain for domain in self._counts if domain not in self._down_since)
        verdicts = [self._take_over(domain, failed, left) for domain in failed if not self._entry(takeovers, domain)]
        back = sorted(domain for domain in self._back_since if self._is_back(domain, now))
        entries = ((domain, self._entry(takeovers, domain)) for domain in back)
        givebacks = [
            OutageVerdict(TakeoverAction.GIVE_BACK, entry, self._back_reason(domain))
            for domain, entry in entries
            if entry
        ]
        return [*verdicts, *givebacks]

    def next_check_seconds(self, now: float) -> float | None:
        """Seconds until a verdict may change without a new observation; None if it can't."""
        times = [since + self._timing.takeover_after_seconds for since in self._down_since.values()]
        times += [since + self._timing.giveback_after_seconds for since in self._back_since.values()]
        return min((time - now for time in times if time > now), default=None)

    def _entry(self, takeovers: TakeoverMap, domain: str) -> TakeoverDomain | None:
        segments = ((self._name, domain),)
        return next((source for source in takeovers.entries if source.matches(segments)), None)

    def _has_failed(self, domain: str, now: float) -> bool:
        return now - self._down_since[domain] >= self._timing.takeover_after_seconds

    def _is_back(self, domain: str, now: float) -> bool:
        return now - self._back_since[domain] >= self._timing.giveback_after_seconds

    def _enough(self, count: NodeCount) -> float:
        return count.nodes * self._timing.back_share

    def _take_over(self, domain: str, failed: Sequence[str], left: Sequence[str]) -> OutageVerdict:
        named = TakeoverDomain(domain, self._name)
        count = self._counts[domain]
        facts = {"domain": str(named), "nodes": str(count.nodes), "failed": str(len(failed)), "left": str(len(left))}
        if len(failed) > len(left):
            sentence = (
                f"{named} seems to have failed, but so have {len(failed)} of {len(failed) + len(left)} domains: the control"
                " plane is more likely cut off. Nothing is taken over automatically; use `zonewise csi takeover` if it failed"
            )
            return OutageVerdict(TakeoverAction.HOLD, named, Reason("MostDomainsFailed", sentence, facts))
        neighbours = tuple(domain_name for domain_name in left if self._counts[domain_name].parent == count.parent)
        targets = tuple(str(TakeoverDomain(domain_name, self._name)) for domain_name in neighbours) or (ALL,)
        what = f"none of its {count.nodes} nodes was ready" if count.nodes else "it has no node left"
        sentence = f"{named} failed: {what} for {self._timing.takeover_after_seconds:g} s"
        return OutageVerdict(TakeoverAction.TAKE_OVER, named, Reason("DomainFailed", sentence, facts), targets)

    def _back_reason(self, domain: str) -> Reason:
        count = self._counts[domain]
        named = TakeoverDomain(domain, self._name)
        sentence = (
            f"{named} is back: {count.ready} of its {count.nodes} nodes are ready, and enough of them have been for"
            f" {self._timing.giveback_after_seconds:g} s"
        )
        return Reason(
            "DomainBack", sentence, {"domain": str(named), "nodes": str(count.nodes), "ready": str(count.ready)}
        )


def _mark(since: dict[str, float], domain: str, now: float, *, holds: bool) -> None:
    if holds:
        since.setdefault(domain, now)
    else:
        since.pop(domain, None)
