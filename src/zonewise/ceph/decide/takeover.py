"""Takeover map: which domains take over which failed ones, what that means for a node's labels, and edits of the map. Pure.

    {"version": 2, "topology-takeover": {"zone-a": ["zone-b", "zone-c"], "zone=zone-d": ["all"]}, "clusters": [...]}

A domain is written as its value, or as `label=value` where two labels may have the same value. The map is parsed
strictly and as a whole: after an error the previous map stays in force, because half a map would give back domains by
mistake.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from zonewise.api.names import CSI_DRIVER, CSI_TAKEOVER_PREFIX, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.decide.domains import ACTIVE, Segments, describe, short_name, takeover_key
from zonewise.errors import ZonewiseError
from zonewise.topology import Reason, value_problem

ALL: Final = "all"
DOCUMENT: Final = "config.json"
"""The config map's key with the driver's whole configuration."""
MAP: Final = "topology-takeover"
"""The map's key in the configuration; also a key of the config map, for the map alone."""
AUTOMATIC: Final = f"{CSI_DRIVER}/automatic"
"""Annotation: the entries written automatically, which are also removed automatically."""
VERSION: Final = 2
_LONGEST_SHOWN: Final = 80


class TakeoverError(ZonewiseError):
    """The takeover map is invalid."""


@dataclass(frozen=True, slots=True)
class TakeoverDomain:
    """As in the map: `name` is empty for a value without a label."""

    value: str
    name: str = ""

    def matches(self, segments: Segments) -> bool:
        return any(value == self.value and self.name in {"", name} for name, value in segments)

    def keys(self, names: Iterable[str]) -> tuple[str, ...]:
        """The takeover labels of the domain; without a name, one for each domain label."""
        return tuple(takeover_key(name, self.value) for name in ((self.name,) if self.name else names))

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.name else self.value


@dataclass(frozen=True, slots=True)
class TakeoverMap:
    """Empty targets stand for all other domains."""

    entries: Mapping[TakeoverDomain, tuple[TakeoverDomain, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def to_json(self) -> dict[str, list[str]]:
        return {str(source): [str(target) for target in targets] or [ALL] for source, targets in self.entries.items()}


NO_TAKEOVERS: Final = TakeoverMap()


def parse_takeover_map(data: Mapping[str, str], names: Sequence[str]) -> TakeoverMap:
    """From a config map's data; `names` are the short names of the domain labels. Without a map there are no takeovers."""
    maps = [_decode(data[MAP], MAP)] if MAP in data else []
    if DOCUMENT in data:
        document = _document(data[DOCUMENT])
        maps += [document[MAP]] if MAP in document else []
    if len(maps) > 1:
        raise TakeoverError(f"{MAP} is both in {DOCUMENT} and beside it: remove one of them")
    return _map(maps[0], names) if maps else NO_TAKEOVERS


def _document(text: str) -> dict[str, Any]:
    document: Any = _decode(text, DOCUMENT)
    if not isinstance(document, dict):
        raise TakeoverError(f"{DOCUMENT} must be an object, such as {{{json.dumps('version')}: {VERSION}}}")
    version = document.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise TakeoverError(f"{DOCUMENT} has version {_shown(version)}, but only version {VERSION} is supported")
    return document


def _decode(text: str, key: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicates)
    except ValueError as error:
        raise TakeoverError(f"{key} is not valid JSON: {error}") from None
    except RecursionError:
        raise TakeoverError(f"{key} is nested too deeply") from None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise TakeoverError(f"{_shown(twice)} is twice in one object: remove one")
    return result


def _map(value: Any, names: Sequence[str]) -> TakeoverMap:
    if not isinstance(value, dict):
        raise TakeoverError(f"{MAP} must be an object: domain to list of the domains that take it over")
    entries: dict[TakeoverDomain, tuple[TakeoverDomain, ...]] = {}
    for key, targets in value.items():
        source = _domain(key, names, f"a domain to be taken over in {MAP}")
        for entry in entries:
            if entry.value == source.value and "" in {entry.name, source.name}:
                raise TakeoverError(f"{MAP} names the domain {source.value} twice, as {entry} and {source}")
        entries[source] = _targets(source, targets, names)
    return TakeoverMap(entries)


def _targets(source: TakeoverDomain, value: Any, names: Sequence[str]) -> tuple[TakeoverDomain, ...]:
    if not isinstance(value, list) or not value:
        raise TakeoverError(
            f'{MAP}: {source} needs a list of domains that take it over, or ["{ALL}"], not {_shown(value)}'
        )
    if ALL in value:
        if len(value) > 1:
            raise TakeoverError(f'{MAP}: {source} is taken over by "{ALL}" and others: "{ALL}" must be the only one')
        return ()
    targets = tuple(_domain(target, names, f"a domain that takes over {source}") for target in value)
    if source in targets:
        raise TakeoverError(f"{MAP}: {source} can't take over itself; name other domains, or remove the entry")
    if len(set(targets)) < len(targets):
        raise TakeoverError(f"{MAP}: {source} names the same domain twice")
    return targets


def _domain(text: Any, names: Sequence[str], what: str) -> TakeoverDomain:
    if not isinstance(text, str) or not text:
        raise TakeoverError(f"{what} must be the name of a domain, not {_shown(text)}")
    label, equals, value = text.rpartition("=")
    if value == ALL and not equals:
        raise TakeoverError(f'{what} can\'t be "{ALL}": name the domain that failed')
    if problem := value_problem(value):
        raise TakeoverError(f"{what}: {_cut(problem)}")
    if not value:
        raise TakeoverError(f"{what} must be the name of a domain, not {_shown(text)}")
    name = short_name(label)
    if equals and name not in names:
        raise TakeoverError(f"{what}: {_shown(label)} is not a domain label: use one of {', '.join(names)}")
    return TakeoverDomain(value, name)


def _shown(value: Any) -> str:
    return _cut(json.dumps(value, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def taken_over_labels(takeovers: TakeoverMap, own: Segments, names: Sequence[str]) -> dict[str, Reason]:
    """The takeover labels of a node in the domains `own`, each with its reason."""
    reasons: dict[str, Reason] = {}
    for source, targets in takeovers.entries.items():
        target = next((target for target in targets if target.matches(own)), None)
        if source.matches(own) or (targets and target is None):
            continue
        by = f"all other domains, {describe(own)} among them" if target is None else str(target)
        reason = Reason(
            "TakesOver",
            f"takes over {source}, as {MAP} gives it to {by}",
            {"source": str(source), "target": ALL if target is None else str(target)},
        )
        reasons.update(dict.fromkeys(source.keys(names), reason))
    return reasons


def label_changes(
    labels: Mapping[str, str], advertised: Mapping[str, str], taken_over: Iterable[str] | None
) -> dict[str, str | None]:
    """Changes to a node's labels; None removes one. `taken_over` is None while the map is invalid.

    Only labels with the driver's two prefixes are touched. Topology labels that are no longer advertised are removed,
    because kubelet refuses to register a driver whose topology differs from the labels.
    """
    target = dict(advertised)
    prefixes: tuple[str, ...] = (CSI_TOPOLOGY_PREFIX,)
    if taken_over is not None:
        target |= dict.fromkeys(taken_over, ACTIVE)
        prefixes = (CSI_TOPOLOGY_PREFIX, CSI_TAKEOVER_PREFIX)
    changes: dict[str, str | None] = {key: value for key, value in target.items() if labels.get(key) != value}
    stale = (key for key in labels if key.startswith(prefixes) and key not in target)
    return changes | dict.fromkeys(stale)


def edit_config_map(
    data: Mapping[str, str], added: Mapping[str, Sequence[str]], removed: Iterable[str] = ()
) -> dict[str, str]:
    """The changed keys of the config map. A map beside the configuration stays there; all else is kept."""
    if MAP in data:
        return {MAP: _text(_edited(json.loads(data[MAP]), added, removed))}
    document: dict[str, Any] = json.loads(data[DOCUMENT]) if DOCUMENT in data else {"version": VERSION}
    document[MAP] = _edited(document.get(MAP, {}), added, removed)
    return {DOCUMENT: _text(document)}


def _edited(before: Mapping[str, Any], added: Mapping[str, Sequence[str]], removed: Iterable[str]) -> dict[str, Any]:
    replaced = {*removed, *added}
    return {key: value for key, value in before.items() if _normalised(key) not in replaced} | {
        key: list(targets) for key, targets in added.items()
    }


def _normalised(key: str) -> str:
    """A key of the map as `TakeoverDomain` prints it."""
    label, equals, value = key.rpartition("=")
    return f"{short_name(label)}{equals}{value}"


def _text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def automatic_entries(annotations: Mapping[str, str]) -> frozenset[str]:
    """The entries written automatically; none if the annotation is invalid: then all count as written by hand."""
    try:
        entries = json.loads(annotations.get(AUTOMATIC, "[]"))
    except ValueError:
        return frozenset()
    return frozenset(entry for entry in entries if isinstance(entry, str)) if isinstance(entries, list) else frozenset()
