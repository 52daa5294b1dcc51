"""Which pods a Service selects and which Services select a pod, found by label pairs. Pure.

`sources` keeps both indexes up to date. A question costs what it answers: a Service its own pods, not those of its
namespace, and a pod its own Services.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from zonewise.objects import Key

Pair = tuple[str, str, str]
"""A namespace, a label key and its value."""

_ANY: Final = ("", "")
"""Stands for the pair that every pod of a namespace has; no label has an empty key."""


def _pairs(namespace: str, labels: Mapping[str, str]) -> Iterator[Pair]:
    for name, value in labels.items():
        yield namespace, name, value


class PodsByLabel:
    def __init__(self) -> None:
        self._pods: dict[Pair, dict[Key, None]] = {}

    def put(self, key: Key, labels: Mapping[str, str]) -> None:
        self._pods.setdefault((key.namespace, *_ANY), {})[key] = None
        for pair in _pairs(key.namespace, labels):
            self._pods.setdefault(pair, {})[key] = None

    def remove(self, key: Key, labels: Mapping[str, str]) -> None:
        self._drop((key.namespace, *_ANY), key)
        for pair in _pairs(key.namespace, labels):
            self._drop(pair, key)

    def matching(self, namespace: str, selector: Mapping[str, str]) -> Iterable[Key]:
        """An empty selector takes every pod of the namespace."""
        if len(selector) == 1:
            return self._pods.get(next(_pairs(namespace, selector)), {})
        entries = [self._pods.get(pair, {}) for pair in _pairs(namespace, selector)]
        if not entries:
            return self._pods.get((namespace, *_ANY), {})
        entries.sort(key=len)
        return [key for key in entries[0] if all(key in entry for entry in entries[1:])]

    def _drop(self, pair: Pair, key: Key) -> None:
        entry = self._pods.get(pair, {})
        entry.pop(key, None)
        if not entry:
            self._pods.pop(pair, None)


class ServicesBySelector:
    """Each Service stands under one pair of its selector: the rarest, so that what all have in common costs nothing."""

    def __init__(self) -> None:
        self._services: dict[Pair, dict[Key, Mapping[str, str]]] = {}
        self._places: dict[Key, Pair] = {}

    def put(self, key: Key, selector: Mapping[str, str] | None) -> None:
        """A Service without a selector selects nothing."""
        self.remove(key)
        if selector is None:
            return
        place = min(_pairs(key.namespace, selector), key=self._size, default=(key.namespace, *_ANY))
        self._services.setdefault(place, {})[key] = selector
        self._places[key] = place

    def remove(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            del self._services[place][key]
            if not self._services[place]:
                del self._services[place]

    def matching(self, namespace: str, labels: Mapping[str, str]) -> list[Key]:
        found = list(self._services.get((namespace, *_ANY), ()))
        for pair in _pairs(namespace, labels):
            for key, selector in self._services.get(pair, {}).items():
                if len(selector) == 1 or selector.items() <= labels.items():
                    found.append(key)
        return found

    def _size(self, pair: Pair) -> int:
        return len(self._services.get(pair, ()))
