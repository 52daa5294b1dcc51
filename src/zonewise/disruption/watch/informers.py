"""Informers of what budgets count: pods, nodes, topology budgets, PodDisruptionBudgets, ReplicaSets, StatefulSets.

They stand between the watch caches and everything that counts, guards or plans: they turn pods into facts once, know
which budget selects which pod, and report which budgets and workloads a change concerns. Heartbeats of nodes, and fields
of pods that are not read here, cost one comparison. Leader and webhooks use the same class.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from zonewise import log
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.ledger import Ledger
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, comes_back, gives_up
from zonewise.disruption.decide.selectors import BudgetSelectors
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import NODES, PODS, Key, Metadata, Node, OwnerReference, Pod
from zonewise.objects.apps import DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, ReplicaSet, StatefulSet
from zonewise.objects.change import Change
from zonewise.objects.policy import (
    POD_DISRUPTION_BUDGETS,
    TOPOLOGY_DISRUPTION_BUDGETS,
    PodDisruptionBudget,
    TopologyDisruptionBudget,
)
from zonewise.topology import LabelSelector, SelectorError

_log = log.get_logger(__name__)


class WorkloadKey(NamedTuple):
    """A controller of pods, or the Deployment above it."""

    kind: str
    key: Key

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


BudgetHandler = Callable[[Key], None]
WorkloadHandler = Callable[[WorkloadKey], None]

_NONE: Final[dict[Key, None]] = {}
_READ_SECONDS: Final = 2.0


class DisruptionInformers:
    """Made before `caches` run. Reading is right once `caches` are synced."""

    def __init__(self, caches: Caches) -> None:
        self.pods: Cache[Pod] = caches.of(PODS)
        self.nodes: Cache[Node] = caches.of(NODES)
        self.budgets: Cache[TopologyDisruptionBudget] = caches.of(TOPOLOGY_DISRUPTION_BUDGETS)
        self.pdbs: Cache[PodDisruptionBudget] = caches.of(POD_DISRUPTION_BUDGETS)
        self.replica_sets: Cache[ReplicaSet] = caches.of(REPLICA_SETS)
        self.stateful_sets: Cache[StatefulSet] = caches.of(STATEFUL_SETS)
        self._facts: dict[Key, PodFacts] = {}
        self._by_uid: dict[str, Key] = {}
        self._by_controller: dict[str, dict[Key, None]] = {}
        self._staying: dict[str, int] = {}
        self._by_node: dict[str, dict[Key, None]] = {}
        self._parsed: dict[Key, Budget | BudgetError] = {}
        self._selected = BudgetSelectors()
        self._stock_selected = BudgetSelectors()
        self._node_labels: dict[str, Mapping[str, str]] = {}
        self._node_domains = NodeDomains(self._node_labels)
        self._replica_sets: dict[str, Key] = {}
        self._budget_handlers: list[BudgetHandler] = []
        self._workload_handlers: list[WorkloadHandler] = []
        self._follow()

    def _follow(self) -> None:
        self.replica_sets.on_change(self._replica_set_changed)
        self.nodes.on_change(self._node_changed)
        self.budgets.on_change(self._budget_changed)
        self.pdbs.on_change(self._pdb_changed)
        self.pods.on_change(self._pod_changed)

    # Handlers.

    def on_budget_dirty(self, handler: BudgetHandler) -> None:
        """Call `handler` with every budget whose counts may have changed, and with all that are there now."""
        self._budget_handlers.append(handler)
        for key in self.budgets.keys():  # noqa: SIM118 - a cache is no dict: it iterates over objects
            handler(key)

    def on_workload_dirty(self, handler: WorkloadHandler) -> None:
        """Call `handler` with every controller whose pods or budgets changed, and with its Deployment."""
        self._workload_handlers.append(handler)

    def touch_pods_of(self, controller_uids: Iterable[str]) -> None:
        """The desired replicas of these controllers have changed, and with them the counts over their pods."""
        pods = dict.fromkeys(pod for uid in controller_uids for pod in self._by_controller.get(uid, _NONE))
        self._touch_budgets(key for pod in pods for key in self._selected.selecting(pod))

    # Reading.

    @property
    def watches(self) -> tuple[Cache[Any], ...]:
        return (self.pods, self.nodes, self.budgets, self.pdbs, self.replica_sets, self.stateful_sets)

    @property
    def blind(self) -> bool:
        """Whether the watches of pods or nodes are down: then no more disruptions may be allowed."""
        return bool(self.pods.problem or self.nodes.problem)

    def facts(self, pod: Key) -> PodFacts | None:
        return self._facts.get(pod)

    def facts_of(self, uid: str) -> PodFacts | None:
        key = self._by_uid.get(uid)
        return self._facts.get(key) if key else None

    def budget(self, key: Key) -> Budget | BudgetError | None:
        """As parsed, or the error of a budget that can't be parsed."""
        return self._parsed.get(key)

    def budgets_of(self, pod: PodFacts) -> list[Budget]:
        """In the order of their names, by the pod's labels as given."""
        budgets = (self._parsed.get(key) for key in self._selected.matching(pod.namespace, pod.labels))
        return [budget for budget in budgets if isinstance(budget, Budget)]

    def pdbs_of(self, pod: PodFacts) -> list[PodDisruptionBudget]:
        keys = self._stock_selected.matching(pod.namespace, pod.labels)
        return [pdb for key in keys if (pdb := self.pdbs.get(key)) is not None]

    def pods_selected_by(self, budget: Key) -> list[PodFacts]:
        return [self._facts[key] for key in self._selected.members(budget)]

    def pods_of(self, controller_uid: str) -> list[PodFacts]:
        """Those whose direct controller it is."""
        return [self._facts[key] for key in self._by_controller.get(controller_uid, _NONE)]

    def is_replaced(self, pod: PodFacts, ledger: Ledger) -> bool:
        """Whether its ReplicaSet creates another pod once the charged pods are gone, or its StatefulSet the same pod."""
        controller = pod.controller
        if controller is None:
            return False
        if controller.kind == STATEFUL_SETS.kind:
            stateful_set = self.stateful_sets.get(Key(pod.namespace, controller.name))
            is_owner = stateful_set is not None and stateful_set.metadata.uid == controller.uid
            return comes_back(pod.name, ordinals_of(stateful_set) if stateful_set and is_owner else None)
        replica_set = self.replica_set(pod.replica_set) if pod.replica_set else None
        if replica_set is None:
            return False
        staying, replicas = self._staying.get(pod.replica_set, 0), replica_set.spec.replicas
        gives = gives_up(staying, replicas)
        if not gives or gives_up(staying - len(ledger), replicas):
            return not gives  # the usual case: a long ledger need not be read
        charged = [facts for uid in ledger if (facts := self.facts_of(uid)) is not None and facts.active]
        return not gives_up(staying - sum(facts.replica_set == pod.replica_set for facts in charged), replicas)

    def replica_set(self, uid: str) -> ReplicaSet | None:
        key = self._replica_sets.get(uid)
        return self.replica_sets.get(key) if key else None

    @property
    def node_domains(self) -> NodeDomains:
        """A new object whenever a node comes, goes or changes its labels."""
        return self._node_domains

    def node_domains_with(self, node: Node) -> NodeDomains:
        """With one more node, which the watch has not reported yet."""
        return NodeDomains(ChainMap({node.metadata.name: node.metadata.labels}, self._node_labels))

    # Changes.

    def _pod_changed(self, change: Change[Pod]) -> None:
        new = PodFacts.of(change.new) if change.new is not None else None
        old = self._facts.get(change.key)
        if old == new:
            return
        before = self._selected.selecting(change.key)
        self._unplace(change.key, old)
        self._place(change.key, new)
        self._touch_budgets((*before, *self._selected.selecting(change.key)))
        for pod in (old, new):
            self._touch_workload_of(pod)

    def _place(self, key: Key, pod: PodFacts | None) -> None:
        self._selected.put_pod(key, pod.labels if pod else None)
        self._stock_selected.put_pod(key, pod.labels if pod else None)
        if pod is None:
            return
        self._facts[key] = pod
        self._by_uid[pod.uid] = key
        if pod.controller:
            self._by_controller.setdefault(pod.controller.uid, {})[key] = None
            self._staying[pod.controller.uid] = self._staying.get(pod.controller.uid, 0) + pod.stays
        if pod.node:
            self._by_node.setdefault(pod.node, {})[key] = None

    def _unplace(self, key: Key, pod: PodFacts | None) -> None:
        if pod is None:
            return
        del self._facts[key]
        if self._by_uid.get(pod.uid) == key:
            del self._by_uid[pod.uid]
        _drop(self._by_controller, pod.controller_uid, key)
        if pod.controller:
            self._staying[pod.controller_uid] -= pod.stays
            if pod.controller_uid not in self._by_controller:
                del self._staying[pod.controller_uid]
        _drop(self._by_node, pod.node, key)

    def _node_changed(self, change: Change[Node]) -> None:
        name = change.key.name
        labels = change.new.metadata.labels if change.new else None
        if labels != self._node_labels.get(name):
            self._node_labels.pop(name, None)
            if labels is not None:
                self._node_labels[name] = labels
            self._node_domains = NodeDomains(self._node_labels)
            on_node = self._by_node.get(name, _NONE)
            self._touch_budgets(key for pod in tuple(on_node) for key in self._selected.selecting(pod))
        elif _unschedulable(change.old) == _unschedulable(change.new):
            return
        for pod in tuple(self._by_node.get(name, _NONE)):
            self._touch_workload_of(self._facts[pod])

    def _budget_changed(self, change: Change[TopologyDisruptionBudget]) -> None:
        if change.new is None:
            self._parsed.pop(change.key, None)
        elif change.old is None or change.old.metadata.generation != change.new.metadata.generation:
            self._parsed[change.key] = _parsed(change.new)
        selected = self._touched_by(self._selected, change.key)
        parsed = self._parsed.get(change.key)
        self._selected.put_selector(change.key, parsed.selector if isinstance(parsed, Budget) else None)
        selected |= self._touched_by(self._selected, change.key)
        self._touch_budgets((change.key,))
        self._touch_workloads(selected)

    def _pdb_changed(self, change: Change[PodDisruptionBudget]) -> None:
        touched = self._touched_by(self._stock_selected, change.key)
        self._stock_selected.put_selector(change.key, selector_of(change.new) if change.new else None)
        self._touch_workloads(touched | self._touched_by(self._stock_selected, change.key))

    def _replica_set_changed(self, change: Change[ReplicaSet]) -> None:
        if change.old is not None:
            self._replica_sets.pop(change.old.metadata.uid, None)
        if change.new is not None:
            self._replica_sets[change.new.metadata.uid] = change.key
        if change.old is None or change.new is None or _owner_uid(change.old) != _owner_uid(change.new):
            self.touch_pods_of(state.metadata.uid for state in (change.old, change.new) if state is not None)
        self._touch_workloads({WorkloadKey(REPLICA_SETS.kind, change.key), *self._above(change.new or change.old)})

    def _touch_budgets(self, keys: Iterable[Key]) -> None:
        for key in dict.fromkeys(keys):
            for handler in self._budget_handlers:
                handler(key)

    def _touch_workload_of(self, pod: PodFacts | None) -> None:
        if pod is not None and self._workload_handlers:
            self._touch_workloads(set(self._workloads_of(pod)))

    def _touched_by(self, membership: BudgetSelectors, key: Key) -> set[WorkloadKey]:
        if not self._workload_handlers:
            return set()
        pods = {pod.controller_uid: pod for pod in map(self._facts.__getitem__, membership.members(key))}
        return {workload for pod in pods.values() for workload in self._workloads_of(pod)}

    def _workloads_of(self, pod: PodFacts) -> Iterator[WorkloadKey]:
        if pod.controller is None:
            return
        yield WorkloadKey(pod.controller.kind, Key(pod.namespace, pod.controller.name))
        yield from self._above(self.replica_set(pod.controller.uid))

    def _above(self, replica_set: ReplicaSet | None) -> Iterator[WorkloadKey]:
        owner = controller_of(replica_set.metadata) if replica_set else None
        if replica_set is not None and owner is not None:
            yield WorkloadKey(owner.kind, Key(replica_set.metadata.namespace, owner.name))

    def _touch_workloads(self, workloads: Collection[WorkloadKey]) -> None:
        for handler in self._workload_handlers:
            for workload in workloads:
                handler(workload)


async def read_pod(client: Client, key: Key) -> Pod | None:
    """The pod as the API server has it now; None if there is none."""
    try:
        return await client.get(PODS, key.name, key.namespace, deadline_seconds=_READ_SECONDS)
    except NotFound:
        return None


def owner_uid_of(pod: PodFacts, sources: DisruptionInformers) -> str:
    """The uid of the pod's top-level controller: the Deployment of its ReplicaSet, or its direct controller."""
    replica_set = sources.replica_set(pod.controller_uid)
    above = controller_of(replica_set.metadata) if replica_set else None
    return above.uid if above is not None and above.kind == DEPLOYMENTS.kind else pod.controller_uid


def controller_of(metadata: Metadata) -> OwnerReference | None:
    return next((owner for owner in metadata.owner_references if owner.controller), None)


def ordinals_of(stateful_set: StatefulSet) -> range:
    """The ordinals of its desired pods; it deletes the others."""
    first = stateful_set.spec.ordinals.start if stateful_set.spec.ordinals else 0
    return range(first, first + stateful_set.spec.replicas)


def _owner_uid(replica_set: ReplicaSet) -> str:
    owner = controller_of(replica_set.metadata)
    return owner.uid if owner else ""


def _parsed(budget: TopologyDisruptionBudget) -> Budget | BudgetError:
    try:
        return Budget.parse(budget)
    except BudgetError as error:
        _log.warning("budget can't be read, it guards nothing", problem=str(error))
        return error


def selector_of(pdb: PodDisruptionBudget) -> LabelSelector:
    """An invalid selector selects nothing; it is not reported here."""
    try:
        return LabelSelector.parse(pdb.spec.selector)
    except SelectorError:
        return LabelSelector(None)


def _unschedulable(node: Node | None) -> bool:
    return node is not None and node.spec.unschedulable


def _drop(index: dict[str, dict[Key, None]], value: str, key: Key) -> None:
    entry = index.get(value)
    if entry is not None:
        entry.pop(key, None)
        if not entry:
            del index[value]
