"""One decision, five programs: controller, node proxy, DNS server, forecast and explain agree, and the limit holds.

Over random clusters with a history, in both modes. Compared are the shares of every client node: the controller's
decision is the measure. No endpoint gets more than the overload threshold allows above an even share, of all endpoints
that its clients may reach. Two exceptions are left out here, as the docs name them: under `Require` the even share is that
of the domain, and endpoints that only terminate are used without preference.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unit.slices.build import SliceStore, pod, service
from zonewise.api.names import (
    ALGORITHM,
    CONSUMER,
    CONSUMER_ALL,
    CONSUMER_SHARED,
    DRAIN_ZONE,
    MANAGED_BY,
    OVERLOAD_THRESHOLD,
    PADDING,
    ROUTING_STATE,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    SERVICE_NAME,
    STARTING_THRESHOLD,
    STOCK_MANAGER,
)
from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.dns.decide.client_groups import ClientProfiles, decisions, group_view
from zonewise.objects import (
    Condition,
    EndpointSlice,
    Key,
    Metadata,
    Node,
    NodeStatus,
    Pod,
    Service,
)
from zonewise.planning.data_plane import DataPlanes
from zonewise.planning.forecast import forecast_services, route_family
from zonewise.planning.snapshot import build_snapshot
from zonewise.proxy.decide.targets import NodeLocation, find_targets, is_stranded
from zonewise.routing import Decision, RoutingNodes, choose, drained_zones, stock_choice
from zonewise.routing.endpoints import is_ready
from zonewise.routing.policy import SameDomain, policy_name, read_policy
from zonewise.routing.tuning import PREFER_ALGORITHMS
from zonewise.slices.decide.families import ServiceFamily
from zonewise.slices.decide.overlay import overlay
from zonewise.slices.decide.plan import plan_slices
from zonewise.topology import REGION, ZONE

OURS = DataPlanes(all_services=True, dns=True)
Shares = Mapping[str, float]


def node(name: str, zone: str | None, region: str | None, ready: bool, worker: bool) -> Node:
    labels = {key: value for key, value in ((ZONE, zone), (REGION, region)) if value}
    labels |= {} if worker else {"node-role.kubernetes.io/control-plane": ""}
    condition = Condition(type="Ready", status="True" if ready else "False")
    return Node(
        metadata=Metadata(name=name, labels=labels),
        status=NodeStatus(allocatable={"cpu": "4"}, conditions=(condition,)),
    )


@dataclass(frozen=True)
class Case:
    """Nodes by zone, readiness and role; pods by node and state, at two or three times."""

    places: list[tuple[str | None, bool, bool]]
    regions: bool
    policy: Mapping[str, str]
    pods: list[tuple[int, str]]
    earlier: list[int]

    def cluster(self) -> RoutingNodes:
        """Zones a and b are in one region."""
        return RoutingNodes.of(
            node(f"n{number}", zone, ("west" if (zone or "a") in "ab" else "east") if self.regions else None, *flags)
            for number, (zone, *flags) in enumerate(self.places)
        )

    def history(self) -> list[list[Pod]]:
        """Where the slices of other zones are not watched, endpoints that terminate are the last resort of hard rules."""
        hard = "Require" in self.policy.values()
        pods = [
            pod(
                f"web-{number}",
                f"10.0.0.{number}",
                node_name=f"n{at % len(self.places)}",
                ready=state == "ready" or (state == "terminating" and not hard),
                terminating=state == "terminating" and not hard,
            )
            for number, (at, state) in enumerate(self.pods)
        ]
        return [*(pods[:length] for length in self.earlier), pods]


MOSTLY = st.sampled_from([True] * 7 + [False])
POLICIES = st.builds(
    lambda levels, tuning, drained: {**levels, **tuning, **drained},
    st.dictionaries(
        st.sampled_from([SAME_NODE, SAME_NODE, SAME_ZONE, SAME_ZONE, SAME_REGION]),
        st.sampled_from(["Prefer", "Prefer", "Prefer", "Require"]),
        min_size=1,
    ),
    st.fixed_dictionaries(
        {STARTING_THRESHOLD: st.sampled_from(["0", "3", "1x"]), PADDING: st.sampled_from(["0", "2"])},
        optional={
            OVERLOAD_THRESHOLD: st.sampled_from(["10%", "50%", "100%"]),
            ALGORITHM: st.sampled_from(sorted(PREFER_ALGORITHMS)),
        },
    ),
    st.just({}) | st.sampled_from("abc").map(lambda zone: {DRAIN_ZONE: zone}),
)
STATES = st.sampled_from(["ready"] * 6 + ["unready", "terminating"])
CASES = st.builds(
    Case,
    st.lists(st.tuples(st.sampled_from([*"aaabbbcd", None]), MOSTLY, MOSTLY), min_size=1, max_size=10),
    st.booleans(),
    POLICIES,
    st.integers(0, 9).flatmap(lambda last: st.lists(st.tuples(st.integers(0, last), STATES), min_size=1, max_size=24)),
    st.lists(st.integers(1, 24), max_size=2),
)


@dataclass(frozen=True)
class Situation:
    """What the controller decided, and the slices that it wrote."""

    cluster: RoutingNodes
    service: Service
    slices: tuple[EndpointSlice, ...]
    decision: Decision

    def by_decision(self, name: str) -> Shares:
        return _normal(choose(self.decision, self.cluster, name).shares)

    def by_proxy(self, name: str) -> Shares:
        """With the slices that the proxy of the node watches."""
        location = NodeLocation(name, self.cluster)
        watched = {CONSUMER_ALL, CONSUMER_SHARED, location.zone}
        slices = self.slices
        if location.zone and not is_stranded(self.service, slices, location.zone):
            slices = tuple(item for item in slices if item.metadata.labels.get(CONSUMER, CONSUMER_ALL) in watched)
        (port,) = self.service.spec.ports
        targets = find_targets(self.service, port, slices, location, "IPv4")
        return _normal({target.address: share for target, share in targets.cluster.items()})

    def by_dns(self) -> dict[str, set[str]]:
        drain = drained_zones(self.service, {}, self.cluster.node_drains)
        made = decisions(self.service, self.slices, self.cluster, drain)
        view = group_view(made, ClientProfiles(self.cluster))
        if view is None:
            return {
                name: {address for decision in made for address in decision.endpoints} for name in self.cluster.nodes
            }
        return {name: set(view.keys[group - 1]) for name, group in view.profile.groups.items()}

    def by_explain(self) -> dict[str, Shares]:
        (front,) = build_service_report(
            self.service, self.slices, list(self.cluster.nodes.values()), data_planes=OURS
        ).fronts
        return {
            name: _normal({share.address: share.share for share in client.shares})
            for client in front.clients
            for name in client.nodes
        }

    def by_kube_proxy(self, name: str) -> set[str]:
        (port,) = self.service.spec.ports
        choice = stock_choice(self.service, port, list(self.slices), self.cluster.nodes[name], family="IPv4")
        return {target.rpartition(":")[0] for target in choice.cluster}


def _normal(shares: Shares) -> dict[str, float]:
    total = sum(shares.values())
    return {address: pytest.approx(share / total, abs=1e-6) for address, share in shares.items()}


def own(cluster: RoutingNodes, svc: Service, history: Iterable[list[Pod]]) -> Situation:
    store = SliceStore(cluster)
    drain = drained_zones(svc, {}, cluster.node_drains)
    for pods in history:
        plan = store.sync(svc, pods, drained=drain)
    assert store.plan(svc, pods, drained=drain).writes == 0, "the decision is stable"
    return Situation(cluster, svc, tuple(store.slices), plan.decisions["IPv4"])


def overlaid(cluster: RoutingNodes, svc: Service, history: Iterable[list[Pod]]) -> Situation:
    """The stock controller writes the slices; the state is reported after each decision."""
    drain = drained_zones(svc, {}, cluster.node_drains)
    state = json.dumps({"policy": policy_name(read_policy(svc).policy)})
    plain, hints = service(), {}
    numbers = count()
    for pods in history:
        stock = [
            msgspec.convert(
                {
                    "metadata": {
                        "name": f"web-{next(numbers)}",
                        "namespace": "shop",
                        "labels": {MANAGED_BY: STOCK_MANAGER, SERVICE_NAME: "web"},
                    },
                    "addressType": "IPv4",
                    "ports": msgspec.to_builtins(body.ports),
                    "endpoints": msgspec.to_builtins(body.endpoints),
                },
                EndpointSlice,
            )
            for body in plan_slices(plain, pods, cluster, [], most_per_slice=100).creates
        ]
        stock = [_hinted(item, hints) for item in stock]
        answer = overlay(svc, stock, cluster, drained=drain)
        hints = {
            address: given
            for item in stock
            for address, given in zip(_addresses(item), answer.hints[_key(item)], strict=True)
        }
        stock = [_hinted(item, hints) for item in stock]
        svc = service({**svc.metadata.annotations, ROUTING_STATE: state})
    return Situation(cluster, svc, tuple(stock), answer.decisions["IPv4"])


def _key(item: EndpointSlice) -> Key:
    return Key(item.metadata.namespace, item.metadata.name)


def _addresses(item: EndpointSlice) -> list[str]:
    return [endpoint.addresses[0] for endpoint in item.endpoints or ()]


def _hinted(item: EndpointSlice, hints: Mapping[str, object]) -> EndpointSlice:
    endpoints = tuple(
        msgspec.structs.replace(endpoint, hints=hints.get(endpoint.addresses[0])) for endpoint in item.endpoints or ()
    )
    return msgspec.structs.replace(item, endpoints=endpoints)


def worst_load(situation: Situation) -> float:
    """The highest load of an endpoint relative to an even share, by what the proxies do."""
    loads: Counter[str] = Counter()
    for name in situation.cluster.clients:
        loads.update({address: share.expected for address, share in situation.by_proxy(name).items()})  # type: ignore[attr-defined]
    return max(loads.values(), default=0) * len(situation.decision.endpoints) / len(situation.cluster.clients)


def fixed(zones: str, counts: Iterable[int], *levels: str) -> Case:
    """A node per zone named, with so many endpoints each."""
    pods = [(number, "ready") for number, count in enumerate(counts) for _ in range(count)]
    policy = {STARTING_THRESHOLD: "0", PADDING: "0", **dict.fromkeys(levels, "Prefer")}
    return Case([(zone, True, True) for zone in zones], False, policy, pods, [])


@pytest.mark.parametrize("mode", [own, overlaid])
@example(case=fixed("aa", [1, 9], SAME_NODE))
@example(case=fixed("a" * 10, [2, 18], SAME_NODE))
@example(case=fixed("ab", [7, 3], SAME_NODE, SAME_ZONE))
@given(case=CASES)
def test_all_programs_agree_and_the_limit_holds(mode: Callable[..., Situation], case: Case) -> None:
    cluster = case.cluster()
    situation = mode(cluster, service(case.policy), case.history())
    explained = situation.by_explain() if situation.slices else {}
    answers = situation.by_dns()
    for name in cluster.nodes:
        decided = situation.by_decision(name)
        assert situation.by_proxy(name) == decided, f"the proxy on {name}"
        if name in explained:
            assert explained[name] == decided, f"explain for {name}"
        if all(map(is_ready, situation.decision.endpoints.values())):
            assert answers[name] == set(decided), f"DNS for {name}"
    assert set(explained) == set(cluster.clients)
    _check_forecast(situation)
    policy = read_policy(situation.service).policy
    assert isinstance(policy, SameDomain)
    if situation.decision.walls is None and situation.decision.endpoints:
        limit = policy.tuning.overload or 0.5
        assert worst_load(situation) - 1 < limit


def _check_forecast(situation: Situation) -> None:
    snapshot = build_snapshot(situation.cluster.nodes.values(), [situation.service], situation.slices, data_planes=OURS)
    (item,) = snapshot.services
    routed = route_family(item, ServiceFamily.IPV4, snapshot)
    for name in situation.cluster.nodes:
        assert _normal(choose(routed.decision, situation.cluster, name).shares) == situation.by_decision(name)
    (forecast,) = forecast_services(snapshot, lambda _: True)
    if not situation.decision.walls and situation.decision.endpoints:
        assert forecast.worst_overload == pytest.approx(max(0.0, worst_load(situation) - 1), abs=1e-6)
    for name in situation.cluster.domains(ZONE) if not routed.expression.losses else ():
        assert situation.by_kube_proxy(name) == set(situation.by_decision(name)), f"kube-proxy on {name}"
