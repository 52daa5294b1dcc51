"""Who takes over which domain: the takeover map of the config map, and what it means for a node. Pure.

    {"version": 2, "topology-takeover": {"zone-a": ["zone-b", "zone-c"], "zone=zone-d": ["all"]}, "clusters": [...]}

A domain is written as its value, or with the label's name before it where the same value may stand for two domains.
The map is read strictly and as a whole: who finds a mistake in it keeps to what was said before, because half a map
would give back domains that nobody meant to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from zonewise.api.names import CSI_TAKEOVER_PREFIX, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.decide.domains import ACTIVE, Segments, describe, short_name, takeover_key
from zonewise.errors import ZonewiseError
from zonewise.topology import Reason, value_problem

ALL: Final = "all"
DOCUMENT: Final = "config.json"
"""The config map's entry with the whole document, as the other settings of the driver have it."""
MAP: Final = "topology-takeover"
"""The name of the map in the document; also an entry of the config map with the map alone."""
VERSION: Final = 2
_LONGEST_SHOWN: Final = 80


class TakeoverError(ZonewiseError):
    """The takeover map can't be read."""


@dataclass(frozen=True, slots=True)
class TakeoverDomain:
    """As written in the map: `name` is empty where the value alone was said."""

    value: str
    name: str = ""

    def holds(self, segments: Segments) -> bool:
        return any(value == self.value and self.name in {"", name} for name, value in segments)

    def keys(self, names: Iterable[str]) -> tuple[str, ...]:
        """The labels of nodes that take it over: where it may be of any label, of each of them."""
        return tuple(takeover_key(name, self.value) for name in ((self.name,) if self.name else names))

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.name else self.value


@dataclass(frozen=True, slots=True)
class TakeoverMap:
    """Empty `targets` stand for all other domains."""

    entries: Mapping[TakeoverDomain, tuple[TakeoverDomain, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def written(self) -> dict[str, list[str]]:
        return {str(source): [str(target) for target in targets] or [ALL] for source, targets in self.entries.items()}


NOTHING: Final = TakeoverMap()


def read(data: Mapping[str, str], names: Sequence[str]) -> TakeoverMap:
    """From a config map; `names` are the short names of the domain labels. Nothing said means no takeover."""
    said = [_parsed(data[MAP], MAP)] if MAP in data else []
    if DOCUMENT in data:
        document = _document(data[DOCUMENT])
        said += [document[MAP]] if MAP in document else []
    if len(said) > 1:
        raise TakeoverError(f"{MAP} stands in {DOCUMENT} and beside it: remove one of them")
    return _map(said[0], names) if said else NOTHING


def _document(text: str) -> dict[str, Any]:
    document: Any = _parsed(text, DOCUMENT)
    if not isinstance(document, dict):
        raise TakeoverError(f"{DOCUMENT} must be an object, such as {{{json.dumps('version')}: {VERSION}}}")
    version = document.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise TakeoverError(f"{DOCUMENT} has version {_shown(version)}, and only {VERSION} can be read")
    return document


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except ValueError as error:
        raise TakeoverError(f"{place} is no JSON: {error}") from None
    except RecursionError:
        raise TakeoverError(f"{place} is no JSON that anybody means: it is nested too deeply") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TakeoverError(f"{_shown(twice)} stands twice in one object: say it once")
    return found


def _map(said: Any, names: Sequence[str]) -> TakeoverMap:
    if not isinstance(said, dict):
        raise TakeoverError(f"{MAP} must be an object of a domain and the list of those that take it over")
    entries: dict[TakeoverDomain, tuple[TakeoverDomain, ...]] = {}
    for written, targets in said.items():
        source = _domain(written, names, f"a domain to be taken over in {MAP}")
        for other in entries:
            if other.value == source.value and "" in {other.name, source.name}:
                raise TakeoverError(f"{MAP} names the domain {source.value} twice, as {other} and {source}")
        entries[source] = _targets(source, targets, names)
    return TakeoverMap(entries)


def _targets(source: TakeoverDomain, said: Any, names: Sequence[str]) -> tuple[TakeoverDomain, ...]:
    if not isinstance(said, list) or not said:
        raise TakeoverError(
            f'{MAP}: {source} needs a list of domains that take it over, or ["{ALL}"], not {_shown(said)}'
        )
    if ALL in said:
        if len(said) > 1:
            raise TakeoverError(f'{MAP}: {source} is taken over by "{ALL}" and others; "{ALL}" says it alone')
        return ()
    targets = tuple(_domain(each, names, f"what takes over {source}") for each in said)
    if source in targets:
        raise TakeoverError(f"{MAP}: {source} can't take over itself; name other domains, or remove the entry")
    if len(set(targets)) < len(targets):
        raise TakeoverError(f"{MAP}: {source} names the same domain twice")
    return targets


def _domain(written: Any, names: Sequence[str], what: str) -> TakeoverDomain:
    if not isinstance(written, str) or not written:
        raise TakeoverError(f"{what} must be the name of a domain, not {_shown(written)}")
    label, equals, value = written.rpartition("=")
    if value == ALL and not equals:
        raise TakeoverError(f'{what} can\'t be "{ALL}": name the domain that failed')
    if problem := value_problem(value):
        raise TakeoverError(f"{what}: {_cut(problem)}")
    if not value:
        raise TakeoverError(f"{what} must be the name of a domain, not {_shown(written)}")
    name = short_name(label)
    if equals and name not in names:
        raise TakeoverError(f"{what}: {_shown(label)} is no domain label; write one of {', '.join(names)}")
    return TakeoverDomain(value, name)


def _shown(value: Any) -> str:
    return _cut(json.dumps(value, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def adopted(takeovers: TakeoverMap, own: Segments, names: Sequence[str]) -> dict[str, Reason]:
    """By label: what a node in the domains `own` takes over, and why."""
    found: dict[str, Reason] = {}
    for source, targets in takeovers.entries.items():
        target = next((target for target in targets if target.holds(own)), None)
        if source.holds(own) or (targets and target is None):
            continue
        by = f"all other domains, {describe(own)} among them" if target is None else str(target)
        reason = Reason(
            "TakesOver",
            f"takes over {source}, as {MAP} gives it to {by}",
            {"source": str(source), "target": ALL if target is None else str(target)},
        )
        found.update(dict.fromkeys(source.keys(names), reason))
    return found


def label_changes(
    labels: Mapping[str, str], advertised: Mapping[str, str], taken_over: Iterable[str] | None
) -> dict[str, str | None]:
    """What to change about a node's labels; None removes one. `taken_over` is None while the map can't be read.

    Only labels under the driver's two prefixes are looked at. One of its topology that is no longer advertised goes,
    because a kubelet would refuse to register a driver that says otherwise.
    """
    wanted = dict(advertised)
    prefixes: tuple[str, ...] = (CSI_TOPOLOGY_PREFIX,)
    if taken_over is not None:
        wanted |= dict.fromkeys(taken_over, ACTIVE)
        prefixes = (CSI_TOPOLOGY_PREFIX, CSI_TAKEOVER_PREFIX)
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if labels.get(key) != value}
    stale = (key for key in labels if key.startswith(prefixes) and key not in wanted)
    return changes | dict.fromkeys(stale)
