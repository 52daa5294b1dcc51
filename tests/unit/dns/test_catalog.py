"""A table that heard every change equals one that was told the end; and where clients are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dns_world import World, endpoint, headless, node, nodes, service, slice_of, told
from zonewise.dns.clients import is_within
from zonewise.dns.ranges import places
from zonewise.dns.table import Choices, Table
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
def test_the_changes_lead_where_a_snapshot_leads(steps: list[Any]) -> None:
    world = World()
    state: dict[str, tuple[Service, tuple[EndpointSlice, ...]]] = {}
    for step in steps:
        if isinstance(step, int):  # a node changes its zone
            moved = [node("zone-a-1", f"zone-{'abc'[step - 1]}", ["10.0.11.0/24"], "192.168.1.1"), *nodes()[1:]]
            world.apply(world.catalog.set_nodes(moved, {}))
            for key in list(world.catalog.viewed):
                found, slices = state[key.name]
                world.apply(world.catalog.set_service(key, found, slices))
            continue
        name, found, slices = step
        world.apply(world.catalog.set_service(Key("shop", name), found, slices))
        world.ask(f"{name}.shop.svc.cluster.local.", "SRV")  # what was read must not hide what comes
        state.pop(name, None)
        if found:
            state[name] = (found, slices)
    afresh = Table(world.table.domain)
    for update in world.catalog.snapshot():
        afresh.apply(update)
    assert plain(world.table) == plain(afresh)
    assert len(world.table._groups) <= len(POLICIES), "profiles that nobody uses are forgotten"


def plain(table: Table) -> dict[bytes, Any]:
    read = {name: tuple(map(_comparable, table.get(name) or ())) for name in list(table.names)}
    return {**read, **table.zonal}


def _comparable(slot: Any) -> Any:
    if isinstance(slot, tuple) and isinstance(slot[4], Choices):
        return {node: slot[4].slots[group] for node, group in slot[4].groups.items()}
    return slot


def test_a_removed_service_leaves_nothing_behind() -> None:
    world = World()
    before = plain(world.table)
    world.put(headless("db", annotations=POLICIES[1]), slice_of("db", [endpoint("10.0.11.1", "zone-a-1")]))
    world.put(service("web", clusterIPs=["10.96.0.1"]), slice_of("web", [endpoint("10.0.11.1", "zone-a-1")]))
    assert told(world.ask("1.11.0.10.in-addr.arpa.", "PTR")) == [
        "PTR 10-0-11-1.db.shop.svc.cluster.local.",
        "PTR 10-0-11-1.web.shop.svc.cluster.local.",
    ]
    world.remove("db")
    world.remove("web")
    assert plain(world.table) == before
    assert not world.table._groups


CLIENTS = [
    ("a pod", "10.0.11.77", "zone-a-1"),
    ("an IPv6 pod", "fd00:32::5", "zone-c-2"),
    ("a pod through a socket of both families", "::ffff:10.0.22.1", "zone-b-2"),
    ("a node", "192.168.3.2", "zone-c-2"),
    ("a single pod, which wins", "10.0.12.9", "zone-b-1"),
    ("a pod in no range", "172.16.0.9", "zone-b-1"),
    ("a smaller range within a larger one", "10.9.0.9", "small"),
    ("the larger range", "10.9.1.9", "large"),
    ("with a scope", "fd00:11::1%eth0", "zone-a-1"),
    ("a stranger", "8.8.8.8", ""),
    ("no address", "somebody", ""),
]


@pytest.mark.parametrize(("address", "expected"), [case[1:] for case in CLIENTS], ids=[case[0] for case in CLIENTS])
def test_clients_are_found_on_their_nodes(address: str, expected: str) -> None:
    more = [
        node("large", "zone-a", ["10.9.0.0/16", "no range"], "192.168.9.1"),
        node("small", "zone-a", ["10.9.0.0/24"], "no address"),
    ]
    pods = {bytes((10, 0, 12, 9)): "zone-b-1", bytes((172, 16, 0, 9)): "zone-b-1"}
    assert places([*nodes(), *more], pods).node(address) == expected


def test_ranges_of_forwarders() -> None:
    assert is_within("10.1.2.3", ["192.168.0.0/16", "10.1.0.0/16"])
    assert is_within("::ffff:10.1.2.3", ["10.1.0.0/16"])
    assert is_within("fd00::1%eth0", ["fd00::/8"])
    assert not is_within("10.2.0.1", ["10.1.0.0/16", "fd00::/8"])
    assert not is_within("somebody", ["0.0.0.0/0"])
