"""Traces of a Service over time, built in or from a file: nodes and endpoints that are added and removed.

A trace is a list of states, one per reconcile of the controller. Endpoints keep their names, so that a replay can tell
which of them moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from zonewise.simulator.decide.inputs import InputError

ZONES: Final = ("zone-a", "zone-b", "zone-c")


@dataclass(frozen=True, slots=True)
class TraceState:
    """Nodes per zone, and the zone of every endpoint by name."""

    nodes: Mapping[str, int]
    zone_of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    about: str
    states: tuple[TraceState, ...]


class TraceStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step: endpoints added and removed per zone, oldest first, and new numbers of nodes."""

    add: dict[str, int] = {}
    remove: dict[str, int] = {}
    nodes: dict[str, int] = {}
    repeat: int = 1


class TraceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: dict[str, int]
    endpoints: dict[str, int]
    steps: list[TraceStep]
    about: str = ""


@dataclass
class _Recorder:
    """Plays steps and records every state; endpoints are numbered in order of creation."""

    nodes: dict[str, int]
    zone_of: dict[str, str] = field(default_factory=dict)
    states: list[TraceState] = field(default_factory=list)
    created: int = 0

    def play(self, step: TraceStep) -> None:
        for zone, count in step.remove.items():
            self._remove(zone, count)
        for zone, count in step.add.items():
            self._add(zone, count)
        self.nodes = {zone: count for zone, count in {**self.nodes, **step.nodes}.items() if count}
        self.states.append(TraceState(dict(self.nodes), dict(self.zone_of)))

    def _add(self, zone: str, count: int) -> None:
        for _ in range(count):
            self.created += 1
            self.zone_of[f"endpoint-{self.created:05d}"] = zone

    def _remove(self, zone: str, count: int) -> None:
        oldest = [name for name, endpoint_zone in self.zone_of.items() if endpoint_zone == zone][:count]
        if len(oldest) < count:
            raise ValueError(f"removes {count} endpoints of {zone}, which has {len(oldest)}")
        for name in oldest:
            del self.zone_of[name]


def _recorded(
    nodes: Mapping[str, int], endpoints: Mapping[str, int], steps: Iterator[TraceStep]
) -> tuple[TraceState, ...]:
    recorder = _Recorder(dict(nodes))
    recorder.play(TraceStep(add=dict(endpoints)))
    for step in steps:
        recorder.play(step)
    return tuple(recorder.states)


def _even(count: int) -> dict[str, int]:
    return dict.fromkeys(ZONES, count)


def _rolling_update() -> Iterator[TraceStep]:
    """Each of 30 endpoints is replaced; the new one is added before the old one is removed."""
    for turn in range(30):
        yield TraceStep(add={ZONES[turn % 3]: 1})
        yield TraceStep(remove={ZONES[turn % 3]: 1})


def _autoscaling() -> Iterator[TraceStep]:
    """From 6 to 30 endpoints and back, by two, spread over the zones."""
    for turn in range(12):
        yield TraceStep(add={ZONES[turn * 2 % 3]: 1, ZONES[(turn * 2 + 1) % 3]: 1})
    for turn in reversed(range(12)):
        yield TraceStep(remove={ZONES[turn * 2 % 3]: 1, ZONES[(turn * 2 + 1) % 3]: 1})


def _zone_loss() -> Iterator[TraceStep]:
    """A zone is lost; the others get replacements; it returns empty and fills again."""
    yield TraceStep(remove={ZONES[2]: 10}, nodes={ZONES[2]: 0})
    for turn in range(10):
        yield TraceStep(add={ZONES[turn % 2]: 1})
    yield TraceStep(nodes={ZONES[2]: 10})
    for turn in range(10):
        yield TraceStep(add={ZONES[2]: 1}, remove={ZONES[turn % 2]: 1})


def _new_zone() -> Iterator[TraceStep]:
    """A fourth zone gets nodes one by one, then endpoints."""
    for count in range(1, 11):
        yield TraceStep(nodes={"zone-d": count})
    for turn in range(8):
        yield TraceStep(add={"zone-d": 1}, remove={ZONES[turn % 3]: 1})


def _node_churn() -> Iterator[TraceStep]:
    """Nodes change in every zone, as spot instances do; endpoints stay."""
    for turn in range(40):
        yield TraceStep(nodes={ZONES[turn % 3]: 10 - (turn * 7 % 5)})


BUILT_IN: Final[Mapping[str, tuple[int, Callable[[], Iterator[TraceStep]], str]]] = {
    "rolling-update": (10, _rolling_update, "30 endpoints replaced one by one, each new one before its old one goes"),
    "autoscaling": (2, _autoscaling, "from 6 endpoints to 30 and back, by two"),
    "zone-loss": (10, _zone_loss, "one zone of three is lost with all its endpoints, and comes back"),
    "new-zone": (10, _new_zone, "a fourth zone gets nodes, then endpoints"),
    "node-churn": (10, _node_churn, "nodes come and go, endpoints stay"),
}


def built_in(name: str) -> Trace:
    endpoints, steps, about = BUILT_IN[name]
    return Trace(name, about, _recorded(_even(10), _even(endpoints), steps()))


def read(text: str, source: str) -> Trace:
    """A user's trace: YAML or JSON with `nodes`, `endpoints` and `steps`."""
    try:
        file = msgspec.convert(yaml.safe_load(text), TraceFile)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"{source}:{mark.line + 1 if mark else 1}: not YAML: {error.args[0] if error.args else error}"
        ) from error
    except msgspec.ValidationError as error:
        raise InputError(
            f"{source}: {error}; write nodes and endpoints per zone, and steps with add, remove, nodes"
        ) from error
    _check(file, source)
    try:
        return Trace(source, file.about, _recorded(file.nodes, file.endpoints, _repeated(file.steps)))
    except ValueError as error:
        raise InputError(f"{source}: a step {error}") from error


def _repeated(steps: Sequence[TraceStep]) -> Iterator[TraceStep]:
    for step in steps:
        for _ in range(step.repeat):
            yield step


def _check(file: TraceFile, source: str) -> None:
    counts: list[tuple[str, Any]] = [("nodes", file.nodes), ("endpoints", file.endpoints)]
    for number, step in enumerate(file.steps, 1):
        counts += [(f"step {number}: {name}", getattr(step, name)) for name in ("add", "remove", "nodes")]
        if not 0 <= step.repeat <= 10_000:
            raise InputError(f"{source}: step {number}: repeat is {step.repeat}; write 0 to 10000")
    for where, by_zone in counts:
        for zone, count in by_zone.items():
            if not 0 <= count <= 100_000:
                raise InputError(f"{source}: {where}: {zone} is {count}; write 0 to 100000")
