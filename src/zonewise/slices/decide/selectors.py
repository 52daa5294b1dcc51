"""Selector indexes: the pods that a Service selects and the Services that select a pod, by label pairs.

The informers maintain both. The cost of a lookup depends on its result: on the pods of the Service rather than those
of its namespace, and on the Services of the pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from zonewise.objects import Key

Pair = tuple[str, str, str]
"""A namespace, a label key and its value."""

_ANY: Final = ("", "")
"""A pair that matches every pod of a namespace; no label has an empty key."""


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
        """An empty selector matches every pod of the namespace."""
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
    """Indexes each Service by the rarest pair of its selector, so that pairs shared by many Services cost nothing."""

    def __init__(self) -> None:
        self._services: dict[Pair, dict[Key, Mapping[str, str]]] = {}
        self._pairs_by_service: dict[Key, Pair] = {}

    def put(self, key: Key, selector: Mapping[str, str] | None) -> None:
        """A Service without a selector matches no pod."""
        self.remove(key)
        if selector is None:
            return
        pair = min(_pairs(key.namespace, selector), key=self._size, default=(key.namespace, *_ANY))
        self._services.setdefault(pair, {})[key] = selector
        self._pairs_by_service[key] = pair

    def remove(self, key: Key) -> None:
        pair = self._pairs_by_service.pop(key, None)
        if pair is not None:
            del self._services[pair][key]
            if not self._services[pair]:
                del self._services[pair]

    def matching(self, namespace: str, labels: Mapping[str, str]) -> list[Key]:
        services = list(self._services.get((namespace, *_ANY), ()))
        for pair in _pairs(namespace, labels):
            for key, selector in self._services.get(pair, {}).items():
                if len(selector) == 1 or selector.items() <= labels.items():
                    services.append(key)
        return services

    def _size(self, pair: Pair) -> int:
        return len(self._services.get(pair, ()))
