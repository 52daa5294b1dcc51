"""Index of budget selectors: the pods that each budget selects, and the budgets that select a pod. Pure.

`watch.informers` keeps one for our budgets and one for stock PDBs. A change of a pod that leaves its labels alone costs
one comparison, however many budgets there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zonewise.objects import Key
from zonewise.topology import LabelSelector

Labels = Mapping[str, str]


class BudgetSelectors:
    def __init__(self) -> None:
        self._selectors: dict[str, dict[Key, LabelSelector]] = {}
        self._labels: dict[str, dict[Key, Labels]] = {}
        self._members: dict[Key, dict[Key, None]] = {}
        self._selecting: dict[Key, tuple[Key, ...]] = {}

    def put_selector(self, key: Key, selector: LabelSelector | None) -> None:
        """None when the budget is gone, or can't be parsed and selects nothing."""
        selectors = self._selectors.setdefault(key.namespace, {})
        if selector == selectors.get(key):
            return
        selectors.pop(key, None)
        if selector is not None:
            selectors[key] = selector
        self._recount(key, selector)

    def put_pod(self, key: Key, labels: Labels | None) -> None:
        """None when the pod is gone."""
        pods = self._labels.setdefault(key.namespace, {})
        before = pods.get(key)
        if before == labels:
            return
        pods.pop(key, None)
        if labels is not None:
            pods[key] = labels
        self._enrol(key, self.matching(key.namespace, labels) if labels is not None else ())

    def matching(self, namespace: str, labels: Labels) -> tuple[Key, ...]:
        """The budgets that select a pod with these labels, in the order of names."""
        selectors = self._selectors.get(namespace, {})
        return tuple(sorted(key for key, selector in selectors.items() if selector.matches(labels)))

    def selecting(self, pod: Key) -> tuple[Key, ...]:
        return self._selecting.get(pod, ())

    def members(self, key: Key) -> Collection[Key]:
        return self._members.get(key, {}).keys()

    def _recount(self, key: Key, selector: LabelSelector | None) -> None:
        for pod in self._members.pop(key, {}):
            self._selecting[pod] = tuple(other for other in self._selecting[pod] if other != key)
        if selector is None:
            return
        members = self._members[key] = {}
        for pod, labels in self._labels.get(key.namespace, {}).items():
            if selector.matches(labels):
                members[pod] = None
                self._selecting[pod] = tuple(sorted((*self.selecting(pod), key)))

    def _enrol(self, pod: Key, selecting: tuple[Key, ...]) -> None:
        for key in self._selecting.pop(pod, ()):
            self._members[key].pop(pod, None)
        for key in selecting:
            self._members.setdefault(key, {})[pod] = None
        if selecting:
            self._selecting[pod] = selecting
