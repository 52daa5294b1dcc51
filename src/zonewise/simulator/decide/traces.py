"""What happens to a Service over time: traces of nodes and endpoints that come and go, built in or from a file.

A trace is a list of situations, one for each time a controller would look. Endpoints have names that last, so that a
replay can tell which of them changed hands.
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
    homes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    about: str
    situations: tuple[TraceState, ...]


class TraceStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One look: endpoints added and removed per zone, oldest first, and new numbers of nodes."""

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
    """Plays steps and remembers every situation; endpoints are named in the order they came."""

    nodes: dict[str, int]
    homes: dict[str, str] = field(default_factory=dict)
    situations: list[TraceState] = field(default_factory=list)
    made: int = 0

    def play(self, step: TraceStep) -> None:
        for zone, count in step.remove.items():
            self._remove(zone, count)
        for zone, count in step.add.items():
            self._add(zone, count)
        self.nodes = {zone: count for zone, count in {**self.nodes, **step.nodes}.items() if count}
        self.situations.append(TraceState(dict(self.nodes), dict(self.homes)))

    def _add(self, zone: str, count: int) -> None:
        for _ in range(count):
            self.made += 1
            self.homes[f"endpoint-{self.made:05d}"] = zone

    def _remove(self, zone: str, count: int) -> None:
        oldest = [name for name, home in self.homes.items() if home == zone][:count]
        if len(oldest) < count:
            raise ValueError(f"removes {count} endpoints of {zone}, which has {len(oldest)}")
        for name in oldest:
            del self.homes[name]


def _recorded(
    nodes: Mapping[str, int], endpoints: Mapping[str, int], steps: Iterator[TraceStep]
) -> tuple[TraceState, ...]:
    recorder = _Recorder(dict(nodes))
    recorder.play(TraceStep(add=dict(endpoints)))
    for step in steps:
        recorder.play(step)
    return tuple(recorder.situations)


def _even(count: int) -> dict[str, int]:
    return dict.fromkeys(ZONES, count)


def _rolling_update() -> Iterator[TraceStep]:
    """One more, one fewer, for each of 30 endpoints: surge comes before the old one goes."""
    for turn in range(30):
        yield TraceStep(add={ZONES[turn % 3]: 1})
        yield TraceStep(remove={ZONES[turn % 3]: 1})


def _autoscaling() -> Iterator[TraceStep]:
    """From 6 to 30 and back, by two, as a scheduler spreads them."""
    for turn in range(12):
        yield TraceStep(add={ZONES[turn * 2 % 3]: 1, ZONES[(turn * 2 + 1) % 3]: 1})
    for turn in reversed(range(12)):
        yield TraceStep(remove={ZONES[turn * 2 % 3]: 1, ZONES[(turn * 2 + 1) % 3]: 1})


def _zone_loss() -> Iterator[TraceStep]:
    """A zone goes with its nodes and endpoints; the others take replacements; it comes back empty and fills again."""
    yield TraceStep(remove={ZONES[2]: 10}, nodes={ZONES[2]: 0})
    for turn in range(10):
        yield TraceStep(add={ZONES[turn % 2]: 1})
    yield TraceStep(nodes={ZONES[2]: 10})
    for turn in range(10):
        yield TraceStep(add={ZONES[2]: 1}, remove={ZONES[turn % 2]: 1})


def _new_zone() -> Iterator[TraceStep]:
    """Node by node a fourth zone appears, then endpoints move into it."""
    for count in range(1, 11):
        yield TraceStep(nodes={"zone-d": count})
    for turn in range(8):
        yield TraceStep(add={"zone-d": 1}, remove={ZONES[turn % 3]: 1})


def _node_churn() -> Iterator[TraceStep]:
    """Nodes come and go everywhere, as spot instances do; no endpoint changes."""
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
    """A trace of the user's own: YAML or JSON with `nodes`, `endpoints` and `steps`."""
    try:
        written = msgspec.convert(yaml.safe_load(text), TraceFile)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"{source}:{mark.line + 1 if mark else 1}: not YAML: {error.args[0] if error.args else error}"
        ) from error
    except msgspec.ValidationError as error:
        raise InputError(
            f"{source}: {error}; write nodes and endpoints per zone, and steps with add, remove, nodes"
        ) from error
    _check(written, source)
    try:
        return Trace(source, written.about, _recorded(written.nodes, written.endpoints, _repeated(written.steps)))
    except ValueError as error:
        raise InputError(f"{source}: a step {error}") from error


def _repeated(steps: Sequence[TraceStep]) -> Iterator[TraceStep]:
    for step in steps:
        for _ in range(step.repeat):
            yield step


def _check(written: TraceFile, source: str) -> None:
    counts: list[tuple[str, Any]] = [("nodes", written.nodes), ("endpoints", written.endpoints)]
    for number, step in enumerate(written.steps, 1):
        counts += [(f"step {number}: {name}", getattr(step, name)) for name in ("add", "remove", "nodes")]
        if not 0 <= step.repeat <= 10_000:
            raise InputError(f"{source}: step {number}: repeat is {step.repeat}; write 0 to 10000")
    for where, by_zone in counts:
        for zone, count in by_zone.items():
            if not 0 <= count <= 100_000:
                raise InputError(f"{source}: {where}: {zone} is {count}; write 0 to 100000")
