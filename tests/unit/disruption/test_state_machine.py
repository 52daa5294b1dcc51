"""Simulated cluster with random events between any two steps: no budget is ever overdrawn.

Webhooks and leaders act, are late, or die; pods go and come back in their zone, become unready, are lost; nodes are
relabelled, the workload is scaled, the budget is edited. `simulated_cluster` does it, and judges every promise.
"""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unit.disruption.simulated_cluster import SimulatedCluster
from unit.disruption.simulation_parts import ANSWERED_SECONDS, BEHIND_SECONDS, BUDGETS, OWNERS, ZONES
from zonewise.disruption.decide.pods import ControllerRef

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"


class Machine(RuleBasedStateMachine):
    @initialize(
        spec=st.sampled_from(sorted(BUDGETS)),
        per_zone=st.integers(1, 4),
        controller=st.sampled_from(sorted(OWNERS)),
    )
    def start(self, spec: str, per_zone: int, controller: ControllerRef) -> None:
        self.cluster = SimulatedCluster(spec, per_zone, controller)

    # Webhooks, and the API server behind them.

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data(), age=st.integers(0, 3), nodes_age=st.integers(0, 2))
    def ask(self, data: st.DataObject, age: int, nodes_age: int) -> None:
        self.cluster.ask(self.cluster.pods[data.draw(st.sampled_from(sorted(self.cluster.pods)))], age, nodes_age)

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.cluster.drain(data.draw(st.sampled_from(sorted(self.cluster.nodes))))

    @precondition(lambda self: any(flight.committed_at is None for flight in self.cluster.flights))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        waiting = [flight for flight in self.cluster.flights if flight.committed_at is None]
        self.cluster.commit(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: any(flight.committed_at is not None for flight in self.cluster.flights))
    @rule(data=st.data(), crashes=st.booleans())
    def answer(self, data: st.DataObject, crashes: bool) -> None:
        """The API server evicts the pod, or never hears of it: a stock budget refused, the webhook died."""
        flights = self.cluster.flights
        flight = data.draw(st.sampled_from([item for item in flights if item.committed_at is not None]))
        flights.remove(flight)
        pod = self.cluster.pods.get(flight.pod.uid)
        if pod is not None and not crashes:
            self.cluster.take(pod)

    # The leader.

    @rule()
    def leader_dies(self) -> None:
        self.cluster.new_leader()

    @rule()
    def leader_looks(self) -> None:
        self.cluster.look()

    @rule()
    def leader_counts(self) -> None:
        self.cluster.count()

    @precondition(lambda self: self.cluster.leader.draft is not None)
    @rule()
    def leader_writes(self) -> None:
        self.cluster.write()

    @rule()
    def leader_leads(self) -> None:
        self.cluster.lead()

    # Kubelets, controllers, the scheduler, time.

    @precondition(lambda self: any(pod.terminating for pod in self.cluster.pods.values()))
    @rule(data=st.data())
    def pod_ends(self, data: st.DataObject) -> None:
        pods = self.cluster.pods
        del pods[data.draw(st.sampled_from(sorted(uid for uid, pod in pods.items() if pod.terminating)))]

    @precondition(lambda self: self.cluster.unreplaced)
    @rule()
    def controller_creates(self) -> None:
        self.cluster.add()

    @precondition(lambda self: any(pod.pending for pod in self.cluster.pods.values()))
    @rule(data=st.data())
    def scheduler_binds(self, data: st.DataObject) -> None:
        cluster = self.cluster
        waiting = data.draw(st.sampled_from(sorted(uid for uid, pod in cluster.pods.items() if pod.pending)))
        if nodes := cluster.nodes_for(waiting):
            cluster.bind(waiting, data.draw(st.sampled_from(nodes)))

    @precondition(lambda self: any(pod.active and not pod.ready for pod in self.cluster.pods.values()))
    @rule(data=st.data())
    def pod_becomes_ready(self, data: st.DataObject) -> None:
        unready = sorted(uid for uid, pod in self.cluster.pods.items() if pod.active and not pod.ready)
        self.cluster.change(data.draw(st.sampled_from(unready)), ready=True)

    @precondition(lambda self: any(pod.terminating for pod in self.cluster.pods.values()))
    @rule(data=st.data())
    def pod_is_replaced(self, data: st.DataObject) -> None:
        self.pod_ends(data)
        if self.cluster.unreplaced:
            self.controller_creates()
            self.scheduler_binds(data)

    @rule()
    def all_become_ready(self) -> None:
        for uid in [uid for uid, pod in self.cluster.pods.items() if pod.active]:
            self.cluster.change(uid, ready=True)
        self.cluster.lead()

    @rule(seconds=st.sampled_from([1.0, 10.0, 16.0, 30.0]), led=st.booleans())
    def time_passes(self, seconds: float, led: bool) -> None:
        cluster = self.cluster
        cluster.now += seconds
        if led:
            cluster.lead()
        elif cluster.now - cluster.leader.looked_at > BEHIND_SECONDS:
            cluster.look()
        cluster.flights = [
            item
            for item in cluster.flights
            if item.committed_at is None or cluster.now - item.committed_at <= ANSWERED_SECONDS
        ]

    # Involuntary disruptions: the leader sees them before the next request, otherwise no count could be right.

    @precondition(lambda self: self.cluster.serving())
    @rule(data=st.data(), gone=st.booleans(), by_eviction=st.booleans())
    def pod_fails(self, data: st.DataObject, gone: bool, by_eviction: bool) -> None:
        cluster = self.cluster
        ready = sorted(uid for uid, pod in cluster.pods.items() if pod.active and pod.ready)
        uid = data.draw(st.sampled_from(ready))
        if gone:
            cluster.lose(uid)
        else:
            cluster.change(uid, ready=False)
            cluster.share_out()
        cluster.lead()
        if by_eviction and not gone:
            cluster.ask(cluster.pods[uid])

    @precondition(lambda self: self.cluster.whole and not self.cluster.stored.status.ledger)
    @rule(data=st.data(), zone=st.sampled_from(ZONES))
    def node_is_relabelled(self, data: st.DataObject, zone: str) -> None:
        self.cluster.relabel(data.draw(st.sampled_from(sorted(self.cluster.nodes))), zone)
        self.cluster.lead()

    @precondition(lambda self: self.cluster.whole and not self.cluster.stored.status.ledger)
    @rule(
        spec=st.sampled_from(["one of each but a", "none but of a"]),
        node=st.sampled_from(["a0", "a1"]),
        zone=st.sampled_from(ZONES),
    )
    def node_is_relabelled_and_a_webhook_has_not_heard_of_it(self, spec: str, node: str, zone: str) -> None:
        """It may join the zones that the budget covers."""
        cluster = self.cluster
        cluster.edit(spec)
        cluster.lead()
        cluster.relabel(node, zone)
        cluster.lead()
        for pod in [pod for pod in cluster.pods.values() if pod.node == node]:
            cluster.ask(pod, nodes_age=1)

    @precondition(lambda self: self.cluster.whole)
    @rule(less=st.integers(1, 3))
    def workload_shrinks(self, less: int) -> None:
        self.cluster.shrink(less)
        self.cluster.lead()

    @precondition(lambda self: self.cluster.is_observed)
    @rule(spec=st.sampled_from(sorted(BUDGETS)))
    def budget_is_edited(self, spec: str) -> None:
        self.cluster.edit(spec)

    @precondition(lambda self: self.cluster.is_observed)
    @rule(
        before=st.sampled_from(["a zone at a time", "one of all", "two per zone"]),
        after=st.sampled_from(sorted(BUDGETS)),
        nodes=st.sampled_from([(f"{zone}0", f"{zone}1") for zone in ZONES]),
        loses=st.booleans(),
        counts=st.booleans(),
    )
    def budget_is_edited_between_two_drains(
        self, before: str, after: str, nodes: tuple[str, str], loses: bool, counts: bool
    ) -> None:
        """Mostly in one zone: neither what the old spec would let go, nor what it lost before, may go by the new one."""
        cluster, (first, second) = self.cluster, nodes
        cluster.edit(before)
        cluster.lead()
        cluster.drain(first)
        if loses and (lost := [uid for uid, pod in cluster.pods.items() if pod.active and pod.node == first]):
            cluster.lose(lost[0])
            cluster.lead()
        cluster.edit(after)
        if counts:
            cluster.lead()
        cluster.drain(second)

    @invariant()
    def ledger_only_knows_pods_of_this_world(self) -> None:
        certain = {f"uid-{number + 1}" for number in range(self.cluster.number)}
        assert set(self.cluster.stored.status.ledger) <= certain


TestMachine = Machine.TestCase
TestMachine.settings = (
    settings(max_examples=300, stateful_step_count=80) if LONG else settings(max_examples=40, stateful_step_count=40)
)
