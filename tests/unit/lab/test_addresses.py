"""The plan of a lab's addresses: disjoint, within the lab's space, and refused with a reason when it does not fit."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide import addresses
from zonewise.lab.decide.addresses import PlanError, plan, zone_names


@given(slot=st.integers(0, addresses.SLOTS - 1), zones=st.integers(1, 26), nodes=st.integers(0, 7))
def test_every_part_has_addresses_of_its_own_within_the_labs(slot: int, zones: int, nodes: int) -> None:
    made = plan("lab", slot, zone_names(zones), nodes)
    for family in (0, 1):
        taken = [made.host[family], made.router[family]]
        taken += [end[family] for zone in made.zones for end in (zone.near, zone.far, zone.gateway)]
        taken += [node.address[family] for node in made.nodes]
        assert len(set(taken)) == len(taken)
        assert all(address in made.prefix[family] for address in taken)
        assert not any(a.prefix[family].overlaps(b.prefix[family]) for a, b in combinations(made.zones, 2))
        for zone in made.zones:
            subnets = [zone.node_subnet[family], *(node.pods[family] for node in zone.nodes)]
            assert not any(a.overlaps(b) for a, b in combinations(subnets, 2))
            assert all(subnet.subnet_of(zone.prefix[family]) for subnet in subnets)
            assert all(node.address[family] in zone.node_subnet[family] for node in zone.nodes)


@given(a=st.integers(0, addresses.SLOTS - 1), b=st.integers(0, addresses.SLOTS - 1))
def test_labs_side_by_side_share_no_address(a: int, b: int) -> None:
    one, other = addresses.prefix_of(a), addresses.prefix_of(b)
    assert (a == b) == one.v4.overlaps(other.v4) == one.v6.overlaps(other.v6)


def test_a_plan_reads_as_people_would_write_it() -> None:
    made = plan("shop", 3, zone_names(3), 2)
    node = made.node("zone-b-2")
    assert made.namespace == "zw-shop"
    assert (str(made.host.v4), str(made.host.v6)) == ("100.67.0.1", "fd7a:6f6e:6503::1")
    assert (node.zone, node.rack, node.namespace) == ("zone-b", "zone-b-r2", "zw-shop.node.zone-b-2")
    assert [str(address) for address in node.address] == ["100.67.128.11", "fd7a:6f6e:6503:200::b"]
    assert [str(prefix) for prefix in node.pods] == ["100.67.130.0/24", "fd7a:6f6e:6503:202::/64"]
    assert made.host == addresses.host_addresses(3)


REFUSED = {
    "a name with a dot": ("a.b", 0, ("x",), 1, "letters, digits and dashes"),
    "a name too long": ("a" * 31, 0, ("x",), 1, "up to 30"),
    "a slot too high": ("lab", 64, ("x",), 1, "slot is 0 to 63"),
    "zones of one name": ("lab", 0, ("x", "x"), 1, "different names"),
    "more nodes than a zone holds": ("lab", 0, ("x", "y", "z"), 64, "room for 63"),
    "more zones than fit": ("lab", 0, tuple(map(str, range(300))), 1, "room for 0"),
}


@pytest.mark.parametrize(("name", "slot", "zones", "nodes", "why"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_to_change(name: str, slot: int, zones: tuple[str, ...], nodes: int, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        plan(name, slot, zones, nodes)


def test_what_is_not_there_is_named_with_what_is() -> None:
    made = plan("lab", 0, ("east", "west"), 1)
    with pytest.raises(PlanError, match="no zone 'north': its zones are east, west"):
        made.zone("north")
    with pytest.raises(PlanError, match="no namespace node 'north-1'"):
        made.node("north-1")
    with pytest.raises(PlanError, match="1 to 26 zones"):
        zone_names(27)
