"""Address plan of a lab: disjoint, within the lab's prefix, and rejected with a reason if it does not fit."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide import addresses
from zonewise.lab.decide.addresses import PlanError, plan, zone_names


@given(slot=st.integers(0, addresses.SLOTS - 1), zones=st.integers(1, 26), nodes=st.integers(0, 7))
def test_addresses_are_unique_and_within_the_labs_prefix(slot: int, zones: int, nodes: int) -> None:
    lab_plan = plan("lab", slot, zone_names(zones), nodes)
    for family in (0, 1):
        used = [lab_plan.host[family], lab_plan.router[family]]
        used += [end[family] for zone in lab_plan.zones for end in (zone.near, zone.far, zone.gateway)]
        used += [node.address[family] for node in lab_plan.nodes]
        assert len(set(used)) == len(used)
        assert all(address in lab_plan.prefix[family] for address in used)
        assert not any(a.prefix[family].overlaps(b.prefix[family]) for a, b in combinations(lab_plan.zones, 2))
        for zone in lab_plan.zones:
            subnets = [zone.node_subnet[family], *(node.pods[family] for node in zone.nodes)]
            assert not any(a.overlaps(b) for a, b in combinations(subnets, 2))
            assert all(subnet.subnet_of(zone.prefix[family]) for subnet in subnets)
            assert all(node.address[family] in zone.node_subnet[family] for node in zone.nodes)


@given(a=st.integers(0, addresses.SLOTS - 1), b=st.integers(0, addresses.SLOTS - 1))
def test_labs_share_no_address(a: int, b: int) -> None:
    first, second = addresses.prefix_of(a), addresses.prefix_of(b)
    assert (a == b) == first.v4.overlaps(second.v4) == first.v6.overlaps(second.v6)


def test_plan_of_a_lab_with_three_zones() -> None:
    lab_plan = plan("shop", 3, zone_names(3), 2)
    node = lab_plan.node("zone-b-2")
    assert lab_plan.namespace == "zw-shop"
    assert (str(lab_plan.host.v4), str(lab_plan.host.v6)) == ("100.67.0.1", "fd7a:6f6e:6503::1")
    assert (node.zone, node.rack, node.namespace) == ("zone-b", "zone-b-r2", "zw-shop.node.zone-b-2")
    assert [str(address) for address in node.address] == ["100.67.128.11", "fd7a:6f6e:6503:200::b"]
    assert [str(prefix) for prefix in node.pods] == ["100.67.130.0/24", "fd7a:6f6e:6503:202::/64"]
    assert lab_plan.host == addresses.host_addresses(3)


REFUSED = {
    "a name with a dot": ("a.b", 0, ("x",), 1, "letters, digits and dashes"),
    "a name too long": ("a" * 31, 0, ("x",), 1, "up to 30"),
    "a slot too high": ("lab", 64, ("x",), 1, "slot is 0 to 63"),
    "zones of one name": ("lab", 0, ("x", "x"), 1, "different names"),
    "more nodes than a zone holds": ("lab", 0, ("x", "y", "z"), 64, "room for 63"),
    "more zones than fit": ("lab", 0, tuple(map(str, range(300))), 1, "room for 0"),
}


@pytest.mark.parametrize(("name", "slot", "zones", "nodes", "why"), REFUSED.values(), ids=REFUSED)
def test_invalid_plan_error_tells_what_to_change(
    name: str, slot: int, zones: tuple[str, ...], nodes: int, why: str
) -> None:
    with pytest.raises(PlanError, match=why):
        plan(name, slot, zones, nodes)


def test_unknown_name_error_lists_the_existing_ones() -> None:
    lab_plan = plan("lab", 0, ("east", "west"), 1)
    with pytest.raises(PlanError, match="no zone 'north': its zones are east, west"):
        lab_plan.zone("north")
    with pytest.raises(PlanError, match="no node 'north-1'"):
        lab_plan.node("north-1")
    with pytest.raises(PlanError, match="1 to 26 zones"):
        zone_names(27)
