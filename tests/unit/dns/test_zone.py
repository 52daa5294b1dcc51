"""Zone updates lead to the same table as a snapshot; client locations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dns.cluster import FakeCluster, answer_texts, endpoint, headless, node, nodes, service, slice_of
from zonewise.dns.decide.client_location import client_locations, is_within
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.table import MAX_DENIALS, QUESTIONS, AnswerChoices, RecordTable
from zonewise.dns.wire import names
from zonewise.dns.wire.message import RecordType
from zonewise.objects import EndpointSlice, Key, Service

NAMES = ("a", "b", "c")
POLICIES: list[dict[str, str]] = [
    {},
    {"endpointslice.kubernetes.io/same-zone": "Require"},
    {"zonewise.dev/topology-keys": '["kubernetes.io/hostname", "*"]'},
]

addresses = st.lists(
    st.builds(
        lambda z, n, last, ready: endpoint(f"10.0.{z}{n}.{last}", f"zone-{'abc'[z - 1]}-{n}", conditions={"ready": ready}),
        st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.booleans(),
    ),
    max_size=4,
)  # fmt: skip


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Service | None, tuple[EndpointSlice, ...]]:
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from(["headless", "cluster", "external", "gone"]))
    slices = (slice_of(name, draw(addresses)), slice_of(name, draw(addresses), [("x", "UDP", 9)], name="two"))
    match kind:
        case "headless":
            return name, headless(name, annotations=draw(st.sampled_from(POLICIES))), slices
        case "cluster":
            ip = f"10.96.0.{draw(st.integers(1, 2))}"
            return name, service(name, clusterIPs=[ip], ports=[{"name": "p", "port": 1}]), slices
        case "external":
            return name, service(name, type="ExternalName", externalName=f"{draw(st.sampled_from(NAMES))}.example"), ()
        case _:
            return name, None, ()


@given(st.lists(st.one_of(changes(), st.integers(1, 3)), max_size=12))
@settings(max_examples=150)
def test_updates_lead_to_the_same_table_as_a_snapshot(steps: list[Any]) -> None:
    cluster = FakeCluster()
    state: dict[str, tuple[Service, tuple[EndpointSlice, ...]]] = {}
    for step in steps:
        if isinstance(step, int):  # a node changes its zone
            moved = [node("zone-a-1", f"zone-{'abc'[step - 1]}", ["10.0.11.0/24"], "192.168.1.1"), *nodes()[1:]]
            cluster.apply(cluster.zone.set_nodes(moved))
            for key in list(cluster.zone.node_dependent):
                service_, slices = state[key.name]
                cluster.apply(cluster.zone.set_service(key, service_, slices))
            continue
        name, service_, slices = step
        cluster.apply(cluster.zone.set_service(Key("shop", name), service_, slices))
        cluster.ask(f"{name}.shop.svc.cluster.local.", "SRV")  # a stored answer must not survive the next change
        state.pop(name, None)
        if service_:
            state[name] = (service_, slices)
    fresh = RecordTable(cluster.table.domain)
    for update in cluster.zone.snapshot():
        fresh.apply(update)
    assert content_of(cluster.table) == content_of(fresh)
    assert len(cluster.table._groups) <= len(POLICIES), "unused profiles are deleted"


def content_of(table: RecordTable) -> dict[Any, Any]:
    """A table's records, and its answers for the names of these tests."""
    content: dict[Any, Any] = {**table.names, **table.services}
    for name in (b"\1" + name.encode() + names.to_wire("shop.svc.cluster.local") for name in NAMES):
        for below in (b"", names.to_wire("_http._tcp")[:-1], names.to_wire("10-0-11-1")[:-1]):
            for kind in (RecordType.A, RecordType.SRV):
                content[name, below, kind] = _comparable(table, below + name, kind)
    return {**content, "reverse": table._reverse}


def _comparable(table: RecordTable, name: bytes, kind: RecordType) -> Any:
    slot = table.find(name, kind)
    if isinstance(slot, tuple) and isinstance(choices := slot[4], AnswerChoices):
        return {node: table.choose(name, kind, choices, group) for node, group in choices.groups.items()}
    return slot


def test_removed_service_leaves_no_state() -> None:
    cluster = FakeCluster()
    before = content_of(cluster.table)
    cluster.put(headless("db", annotations=POLICIES[1]), slice_of("db", [endpoint("10.0.11.1", "zone-a-1")]))
    cluster.put(service("web", clusterIPs=["10.96.0.1"]), slice_of("web", [endpoint("10.0.11.1", "zone-a-1")]))
    assert answer_texts(cluster.ask("1.11.0.10.in-addr.arpa.", "PTR")) == [
        "PTR 10-0-11-1.db.shop.svc.cluster.local.",
        "PTR 10-0-11-1.web.shop.svc.cluster.local.",
    ]
    cluster.remove("db")
    cluster.remove("web")
    assert content_of(cluster.table) == before
    assert not cluster.table._groups


def test_denials_evict_no_answers() -> None:
    cluster = FakeCluster().put(service("web", clusterIPs=["10.96.0.1"]))
    cluster.ask("web.shop.svc.cluster.local.")
    cluster.ask("api.shop.svc.cluster.local.")
    stored, question = set(cluster.table.answers), QUESTIONS[RecordType.A]
    for number in range(MAX_DENIALS + 5):
        cluster.table.find(names.to_wire(f"x{number}.other.svc.cluster.local"), RecordType.A)
    assert names.to_wire("web.shop.svc.cluster.local") + question in cluster.table.answers
    assert len(cluster.table.answers) < len(stored) + MAX_DENIALS
    cluster.put(service("x1", "other", clusterIPs=["10.96.0.2"]))
    assert answer_texts(cluster.ask("x1.other.svc.cluster.local.")) == ["A 10.96.0.2"], (
        "a denial ends when the Service is created"
    )


def test_changing_rules_leave_no_profiles_behind() -> None:
    """Each rule may name other labels, and each moved endpoint changes which groups are near."""
    cluster = FakeCluster()
    for number in range(100):
        keys = f'["example.com/{number}", "kubernetes.io/hostname"]'
        home = endpoint(f"10.0.11.{number}", f"zone-{'abc'[number % 3]}-{number % 2 + 1}")
        cluster.put(headless("db", annotations={"zonewise.dev/topology-keys": keys}), slice_of("db", [home]))
        cluster.ask("db.shop.svc.cluster.local.", client="10.0.11.1")
        if number % 10 == 0:
            cluster.apply(cluster.zone.set_nodes(cluster.nodes))
    profiles = cluster.zone._profiles
    assert len(profiles._current) + len(profiles._last) <= 2
    assert len(cluster.zone._profile_users) == len(cluster.table._groups) == 1
    near = [tuple(n >> bit & 1 == 1 for bit in range(8)) for n in range(200)]
    for pattern in near:
        cluster.table._near[pattern] = pattern
    cluster.put(headless("db", annotations=POLICIES[1]), slice_of("db", [endpoint("10.0.11.1", "zone-a-1")]))
    cluster.ask("db.shop.svc.cluster.local.", client="10.0.11.1")
    assert len(cluster.table._near) == 1


POD_STEPS = st.tuples(
    st.sampled_from([Key("shop", "a"), Key("shop", "b"), Key("default", "a")]),
    st.lists(st.integers(1, 3), max_size=2, unique=True),
    st.sampled_from(["zone-a-1", "zone-b-1"]),
)


@given(st.lists(POD_STEPS, max_size=12))
@settings(max_examples=200)
def test_pod_updates_lead_to_the_same_table_as_a_snapshot(steps: list[tuple[Key, list[int], str]]) -> None:
    cluster = FakeCluster(pods=PodNameRecords.VERIFIED, locate_by_pods=True)
    held: dict[Key, tuple[list[bytes], str]] = {}
    for pod, numbers, node_name in steps:
        ips = [bytes((172, 16, 0, number)) for number in numbers]
        updates = cluster.zone.set_pod(pod, ips, node_name)
        assert sum(len(update[1]) for update in updates) <= 3 * (len(ips) + len(held.get(pod, ([], ""))[0]))
        cluster.apply(updates)
        held[pod] = (ips, node_name)
    fresh = RecordTable(cluster.table.domain)
    for update in cluster.zone.snapshot():
        fresh.apply(update)
    assert cluster.table.locations.pods == fresh.locations.pods
    assert cluster.table.names == fresh.names
    holders = {ip: [pod for pod, (ips, _) in held.items() if ip in ips] for ips, _ in held.values() for ip in ips}
    for ip, pods in holders.items():
        if len(pods) == 1:  # of several, the last one has it
            (pod,) = pods
            label = f"172-16-0-{ip[3]}"
            assert cluster.table.locations.pods.get(ip) in {held[pod][1], None}
            if ip in cluster.table.locations.pods:
                assert answer_texts(cluster.ask(f"{label}.{pod.namespace}.pod.cluster.local.")) == [
                    f"A 172.16.0.{ip[3]}"
                ]


def test_clients_are_located_by_pod_without_pod_ranges() -> None:
    cluster = FakeCluster(nodes_=[node("bare", "zone-a", [], "192.168.9.1")], locate_by_pods=True)
    cluster.apply(cluster.zone.set_pod(Key("shop", "p"), [bytes((172, 16, 0, 9))], "bare"))
    assert cluster.table.locations.node_of("172.16.0.9") == "bare"
    version = cluster.table.locations_version
    cluster.apply(cluster.zone.set_nodes(nodes()))
    assert cluster.table.locations.node_of("172.16.0.9") == "bare", "a change of nodes keeps pods"
    assert cluster.table.locations_version == version + 1
    cluster.apply(cluster.zone.set_pod(Key("shop", "p"), [], ""))
    assert cluster.table.locations.node_of("172.16.0.9") == ""
    disabled = FakeCluster(pods=PodNameRecords.DISABLED)
    assert disabled.zone.set_pod(Key("shop", "p"), [bytes((172, 16, 0, 9))], "zone-a-1") == []


CLIENTS = [
    ("a pod", "10.0.11.77", "zone-a-1"),
    ("an IPv6 pod", "fd00:32::5", "zone-c-2"),
    ("an IPv4 pod through a dual-stack socket", "::ffff:10.0.22.1", "zone-b-2"),
    ("a node", "192.168.3.2", "zone-c-2"),
    ("a single pod takes precedence", "10.0.12.9", "zone-b-1"),
    ("a pod in no range", "172.16.0.9", "zone-b-1"),
    ("a smaller range within a larger one", "10.9.0.9", "small"),
    ("the larger range", "10.9.1.9", "large"),
    ("with a scope", "fd00:11::1%eth0", "zone-a-1"),
    ("outside the cluster", "8.8.8.8", ""),
    ("not an address", "client", ""),
]


@pytest.mark.parametrize(("address", "expected"), [case[1:] for case in CLIENTS], ids=[case[0] for case in CLIENTS])
def test_client_address_is_mapped_to_its_node(address: str, expected: str) -> None:
    more = [
        node("large", "zone-a", ["10.9.0.0/16", "no range"], "192.168.9.1"),
        node("small", "zone-a", ["10.9.0.0/24"], "no address"),
    ]
    pods = {bytes((10, 0, 12, 9)): "zone-b-1", bytes((172, 16, 0, 9)): "zone-b-1"}
    assert client_locations([*nodes(), *more], pods).node_of(address) == expected


def test_forwarders_are_matched_by_range() -> None:
    assert is_within("10.1.2.3", ["192.168.0.0/16", "10.1.0.0/16"])
    assert is_within("::ffff:10.1.2.3", ["10.1.0.0/16"])
    assert is_within("fd00::1%eth0", ["fd00::/8"])
    assert not is_within("10.2.0.1", ["10.1.0.0/16", "fd00::/8"])
    assert not is_within("client", ["0.0.0.0/0"])
