"""Order of upstream servers, healthy ones in turn, unhealthy ones last; and which of them keep the case of a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple

from zonewise.errors import UsageError

UNHEALTHY_FAILURES: Final = 2
CASE_CHANGES: Final = 3
"""After so many replies in a row that repeat a name in other letters, an upstream is taken not to keep them. Until then
each question is asked again: the reply may be forged."""
CASE_PROBE_SECONDS: Final = 60.0
"""How often such an upstream is probed."""


class Upstream(NamedTuple):
    host: str
    port: int = 53

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_upstream(text: str) -> Upstream:
    """`10.0.0.1`, `10.0.0.1:5353`, `fd00::1` or `[fd00::1]:5353`."""
    host, port = text, "53"
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        port = port.removeprefix(":") or "53" if bracket else ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        ip_address(host)
        return Upstream(host, int(port))
    except ValueError:
        raise UsageError(
            f"upstream {text!r}: write an address such as 10.0.0.2, 10.0.0.2:5353 or [fd00::2]:53"
        ) from None


def read_resolv_conf(text: str) -> tuple[str, ...]:
    """The name servers of a resolv.conf."""
    lines = (line.split() for line in text.splitlines())
    return tuple(words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")


@dataclass(slots=True)
class Upstreams:
    all: Sequence[Upstream]
    failures: dict[Upstream, int] = field(default_factory=dict)
    """Consecutive."""
    _case_changes: Counter[Upstream] = field(default_factory=Counter)
    """Consecutive."""
    _case_probed_at: dict[Upstream, float] = field(default_factory=dict)

    def order(self, chance: float) -> list[Upstream]:
        """In which order to try them; `chance` in [0, 1) spreads the load."""
        begin = int(chance * len(self.all))
        rotated = [*self.all[begin:], *self.all[:begin]]
        return sorted(rotated, key=self.is_unhealthy)

    def is_unhealthy(self, upstream: Upstream) -> bool:
        return self.failures.get(upstream, 0) >= UNHEALTHY_FAILURES

    @property
    def unhealthy(self) -> list[Upstream]:
        """To be probed until they answer."""
        return [upstream for upstream in self.all if self.is_unhealthy(upstream)]

    def succeeded(self, upstream: Upstream) -> None:
        self.failures.pop(upstream, None)

    def failed(self, upstream: Upstream) -> None:
        self.failures[upstream] = self.failures.get(upstream, 0) + 1

    def keeps_case(self, upstream: Upstream) -> bool:
        return self._case_changes[upstream] < CASE_CHANGES

    def case_kept(self, upstream: Upstream) -> None:
        """A name in mixed case came back as it was sent."""
        del self._case_changes[upstream]

    def case_changed(self, upstream: Upstream, now: float) -> None:
        self._case_changes[upstream] += 1
        self.case_probed(upstream, now)

    def case_probed(self, upstream: Upstream, now: float) -> None:
        """Also if it does not answer the probe."""
        self._case_probed_at[upstream] = now

    def case_probes_due(self, now: float) -> list[Upstream]:
        """To be asked in mixed case once more: other software may answer there now, or the replies were forged."""
        changing = (upstream for upstream in self.all if not (self.keeps_case(upstream) or self.is_unhealthy(upstream)))
        return [upstream for upstream in changing if now - self._case_probed_at[upstream] >= CASE_PROBE_SECONDS]
