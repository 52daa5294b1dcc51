"""Probe results of a container, and when the next probe is due. Pure. Thresholds count as in the kubelet.

`lifecycle` asks it what to probe and whether to restart, `podstatus` whether a container is ready; `probes` does the probing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from zonewise.lab.decide.podspec import Probe, RunContainer


class ProbeKind(StrEnum):
    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


class ProbeTally(msgspec.Struct, frozen=True):
    """The results in a row of one probe during one run of its container; `passing` is None until a threshold is reached."""

    successes: int = 0
    failures: int = 0
    passing: bool | None = None
    last_at: float | None = None

    def record(self, probe: Probe, success: bool, now: float) -> ProbeTally:
        successes = self.successes + 1 if success else 0
        failures = 0 if success else self.failures + 1
        passing = self.passing
        if successes >= probe.success_threshold:
            passing = True
        elif failures >= probe.failure_threshold:
            passing = False
        return ProbeTally(successes, failures, passing, now)


Tallies = Mapping[ProbeKind, ProbeTally]


def probe_of(container: RunContainer, kind: ProbeKind) -> Probe | None:
    match kind:
        case ProbeKind.STARTUP:
            return container.startup_probe
        case ProbeKind.READINESS:
            return container.readiness_probe
        case ProbeKind.LIVENESS:
            return container.liveness_probe


def started(container: RunContainer, tallies: Tallies) -> bool:
    """Whether the container counts as started up: the other probes wait for that."""
    return container.startup_probe is None or _passing(tallies, ProbeKind.STARTUP) is True


def ready(container: RunContainer, tallies: Tallies) -> bool:
    """Of a running container. Without a probe, being started is enough."""
    if not started(container, tallies):
        return False
    return container.readiness_probe is None or _passing(tallies, ProbeKind.READINESS) is True


def failed(tallies: Tallies) -> ProbeKind | None:
    """The probe for whose sake the container must be restarted."""
    for kind in (ProbeKind.STARTUP, ProbeKind.LIVENESS):
        if _passing(tallies, kind) is False:
            return kind
    return None


def due(container: RunContainer, tallies: Tallies, started_at: float, *, terminating: bool) -> dict[ProbeKind, float]:
    """When each probe that makes sense now is due. A terminating container is still asked whether it serves."""
    if started(container, tallies):
        kinds = [ProbeKind.READINESS] if terminating else [ProbeKind.READINESS, ProbeKind.LIVENESS]
    else:
        kinds = [] if terminating else [ProbeKind.STARTUP]
    return {
        kind: _due_at(probe, tallies.get(kind, ProbeTally()), started_at)
        for kind in kinds
        if (probe := probe_of(container, kind)) is not None
    }


def _due_at(probe: Probe, tally: ProbeTally, started_at: float) -> float:
    if tally.last_at is None:
        return started_at + probe.initial_delay_seconds
    return tally.last_at + probe.period_seconds


def _passing(tallies: Tallies, kind: ProbeKind) -> bool | None:
    return tallies[kind].passing if kind in tallies else None
