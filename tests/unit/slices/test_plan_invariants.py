"""Invariants of every plan, for any policy and history."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from unit.slices.build import HTTP, SliceStore, node, pod, pods_in, service
from zonewise.api.names import (
    ALGORITHM,
    CONSUMER,
    OLD_HINTS,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
)
from zonewise.objects import Container, ContainerPort, EndpointSlice, Pod, Service, ServicePort
from zonewise.routing import HintsForm, RoutingNodes
from zonewise.routing.tuning import PREFER_ALGORITHMS
from zonewise.slices.decide.plan import SlicesPlan, plan_slices

REGION_OF_ZONE = {"a": "r", "b": "r", "c": "s"}
CLUSTER = RoutingNodes.of(
    [
        *(node(f"{zone}{number}", zone, region) for zone, region in REGION_OF_ZONE.items() for number in (1, 2)),
        node("nowhere"),
    ]
)
NODES = [*CLUSTER.nodes, "unknown"]
AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
NAMED = ServicePort(name="admin", port=81, target_port="admin")

POLICIES: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "prefer zone": {SAME_ZONE: "Prefer"},
    **{
        f"prefer zone at once, {algorithm}": {SAME_ZONE: "Prefer", ALGORITHM: algorithm} | AT_ONCE
        for algorithm in PREFER_ALGORITHMS
    },
    "require zone": {SAME_ZONE: "Require"},
    "require node": {SAME_NODE: "Require"},
    "prefer node": {SAME_NODE: "Prefer"},
    "require region, prefer zone": {SAME_REGION: "Require", SAME_ZONE: "Prefer"} | AT_ONCE,
    "prefer region": {SAME_REGION: "Prefer"} | AT_ONCE,
    "prefer zone and region": {SAME_ZONE: "Prefer", SAME_REGION: "Prefer"} | AT_ONCE,
    "balanced": {SAME_ZONE: "Balanced"},
    "hints": {OLD_HINTS: "auto"},
    "keys": {TOPOLOGY_KEYS: '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'},
}
DISTRIBUTIONS = [None, "PreferClose", "PreferSameNode"]


@dataclass(frozen=True)
class State:
    service: Service
    pods: tuple[Pod, ...]


def pods_named(name: str) -> st.SearchStrategy[Pod]:
    number = int(name.removeprefix("web-"))
    admin = Container(ports=(ContainerPort(name="admin", container_port=9000 + number % 2),))
    return st.builds(
        lambda node_name, ready, terminating, phase, dual: pod(
            name,
            f"10.0.0.{number}",
            *([f"fd00::{number:x}"] if dual else []),
            node_name=node_name,
            ready=ready,
            terminating=terminating,
            phase=phase,
            containers=[admin],
        ),
        st.sampled_from(NODES),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from(["Running"] * 9 + ["Failed"]),
        st.booleans(),
    )


SERVICES = st.builds(
    lambda policy, distribution, named, families, labels: service(
        POLICIES[policy],
        labels,
        traffic_distribution=distribution,
        ports=(HTTP, NAMED) if named else (HTTP,),
        ip_families=families,
    ),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(DISTRIBUTIONS),
    st.sampled_from([False, False, True]),
    st.sampled_from([("IPv4",), ("IPv4",), ("IPv4", "IPv6")]),
    st.sampled_from([{}, {}, {"team": "shop"}]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[State]:
    """Each state keeps most of the last one's pods, and often its Service."""
    names = [f"web-{number}" for number in range(1, draw(st.integers(1, 24)))]
    svc = draw(SERVICES)
    pods: dict[str, Pod] = {}
    states = []
    for _ in range(draw(st.integers(1, 4))):
        for name in draw(st.lists(st.sampled_from(names), unique=True)) if names else ():
            if name in pods and draw(st.booleans()):
                del pods[name]
            else:
                pods[name] = draw(pods_named(name))
        svc = draw(st.one_of(st.just(svc), st.just(svc), SERVICES))
        states.append(State(svc, tuple(pods.values())))
    return states


def expected(state: State, family: str) -> dict[str, str]:
    """The pods that belong into slices, with their address, computed independently of the plan."""
    mark = ":" if family == "IPv6" else "."
    return {
        pod_.metadata.name: ip.ip
        for pod_ in state.pods
        if pod_.status.phase == "Running" and pod_.spec.node_name != "unknown"
        for ip in pod_.status.pod_ips
        if mark in ip.ip
    }


def in_slices(slices: list[EndpointSlice], family: str) -> Counter[tuple[str, str]]:
    return Counter(
        (endpoint.target_ref.name, endpoint.addresses[0])
        for endpoint_slice in slices
        if endpoint_slice.address_type == family
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.target_ref
    )


def check_groups(endpoint_slice: EndpointSlice) -> None:
    hinted = [
        {hint.name for hint in endpoint.hints.for_zones}
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.hints
    ]
    match endpoint_slice.metadata.labels.get(CONSUMER):
        case None:
            pass
        case "zonewise-all":
            assert not any(hinted)
        case "zonewise-shared":
            assert all(len(zones) != 1 for zones in hinted)
        case zone:
            assert all(zones in (set(), {zone}) for zones in hinted)


def check(store: SliceStore, state: State, plan: SlicesPlan) -> None:
    slices = store.slices
    families = state.service.spec.ip_families
    assert {endpoint_slice.address_type for endpoint_slice in slices} == set(families)
    for family in families:
        assert in_slices(slices, family) == Counter(expected(state, family).items())
        family_slices = [endpoint_slice for endpoint_slice in slices if endpoint_slice.address_type == family]
        assert all(endpoint_slice.endpoints for endpoint_slice in family_slices) or len(family_slices) == 1
        grouped = plan.decisions[family].reading.source.startswith("endpointslice.kubernetes.io/same-") and any(
            value != "Balanced" for key, value in state.service.metadata.annotations.items() if "same-" in key
        )
        assert all((CONSUMER in endpoint_slice.metadata.labels) is grouped for endpoint_slice in family_slices)
    for endpoint_slice in slices:
        assert len(endpoint_slice.endpoints or ()) <= store.most
        check_groups(endpoint_slice)
    assert plan.slices == len(slices)
    assert plan.desired_endpoints == len(store.endpoints)


def ready(store: SliceStore) -> int:
    return sum(endpoint.conditions.ready is True for endpoint in store.endpoints)


def interrupt(store: SliceStore, plan: SlicesPlan, chance: random.Random) -> None:
    """Performs some of the writes, like a controller that is killed in between."""
    writes = store.write_plan(plan)
    for _ in range(chance.randint(0, plan.writes)):
        next(writes)


@settings(max_examples=60)
@given(histories(), st.sampled_from([2, 3, 100]), st.randoms(use_true_random=False), st.sampled_from(HintsForm))
def test_plan_leads_to_correct_slices_and_is_stable(
    history: list[State], most: int, chance: random.Random, form: HintsForm
) -> None:
    """No endpoint is lost, invented or duplicated; the order does not matter; the next plan writes nothing."""
    store = SliceStore(CLUSTER, most=most, form=form)
    for state in history:
        before = store.slices
        plan = store.plan(state.service, state.pods)
        shuffled = list(state.pods)
        chance.shuffle(shuffled)
        chance.shuffle(before)
        assert plan_slices(state.service, shuffled, CLUSTER, before, most_per_slice=most, hints=form) == plan
        if chance.random() < 0.2:
            interrupt(store, plan, chance)
            plan = store.plan(state.service, state.pods)
        served = [ready(store), *(ready(store) for _ in store.write_plan(plan))]
        assert all(served) or not served[0] or not served[-1]
        check(store, state, plan)
        assert store.plan(state.service, state.pods).writes == 0


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, list[Pod], list[Pod]]:
    """The slice limit, and the pods before and after some were removed, changed and added."""
    most = draw(st.integers(1, 6))
    before = pods_in({"a": draw(st.integers(0, 30))})
    outcomes = draw(
        st.lists(st.sampled_from(["stays"] * 4 + ["goes", "changes"]), min_size=len(before), max_size=len(before))
    )
    after = [pod_ for pod_, outcome in zip(before, outcomes, strict=True) if outcome != "goes"]
    for name, ip in [
        (pod_.metadata.name, pod_.status.pod_ip)
        for pod_, outcome in zip(before, outcomes, strict=True)
        if outcome == "changes"
    ]:
        after = [pod(name, ip, ready=False) if pod_.metadata.name == name else pod_ for pod_ in after]
    return most, before, after + pods_in({"b": draw(st.integers(0, 12))})


def fewest_writes(slices: list[EndpointSlice], after: list[Pod], most: int) -> int:
    """The fewest writes of any placement: every slice that loses or changes endpoints, and room for the added ones.

    A slice that loses all endpoints is written in any case, and so can take some of the added ones.
    """
    ready_by_name = {pod_.metadata.name: pod_.status.conditions[0].status == "True" for pod_ in after}
    added, touched, room, emptied = dict(ready_by_name), 0, 0, 0
    for endpoint_slice in slices:
        kept = [
            end for end in endpoint_slice.endpoints or () if end.target_ref and end.target_ref.name in ready_by_name
        ]
        changed = [end for end in kept if end.target_ref and ready_by_name[end.target_ref.name] != end.conditions.ready]
        for end in kept:
            added.pop(end.target_ref.name if end.target_ref else "")
        if not kept:
            emptied += 1
        elif changed or len(kept) < len(endpoint_slice.endpoints or ()):
            touched += 1
            room += most - len(kept)
    return touched + max(emptied, -(-max(0, len(added) - room) // most))


@settings(max_examples=150)
@given(changes(), changes())
def test_no_placement_needs_fewer_writes(
    first: tuple[int, list[Pod], list[Pod]], second: tuple[int, list[Pod], list[Pod]]
) -> None:
    most = first[0]
    store = SliceStore(CLUSTER, most=most)
    for pods in (*first[1:], *second[1:]):
        if pods and store.endpoints:
            assert store.plan(service(), pods).writes == fewest_writes(store.slices, pods, most)
        store.sync(service(), pods)


@st.composite
def populations(draw: st.DrawFn) -> dict[str, int]:
    return {zone: draw(st.integers(2, 12)) for zone in REGION_OF_ZONE}


@settings(max_examples=100)
@given(
    populations(), st.sampled_from(sorted(REGION_OF_ZONE)), st.booleans(), st.sampled_from(sorted(PREFER_ALGORITHMS))
)
def test_update_within_thresholds_moves_no_other_endpoint(
    population: dict[str, int], zone: str, added: bool, algorithm: str
) -> None:
    """One pod more or less: if the assignment is kept, the other endpoints stay and one slice is written."""
    svc = service(POLICIES[f"prefer zone at once, {algorithm}"])
    store = SliceStore(CLUSTER)
    store.sync(svc, pods_in(population))
    before = {name: endpoint.hints for name, endpoint in store.by_pod.items()}
    pods = pods_in(population | {zone: population[zone] + (1 if added else -1)})
    plan = store.sync(svc, pods)
    stayed = {name: hints for name, hints in before.items() if name in store.by_pod}
    facts = plan.decisions["IPv4"].reason.facts
    if facts.get("assignment") == "kept" and not facts["moved"]:
        assert {name: endpoint.hints for name, endpoint in store.by_pod.items() if name in before} == stayed
        assert (plan.writes, plan.reallocated) == (1, 0)
