"""What is foreseen: the figures of a plan, and what each change makes of them."""

from __future__ import annotations

import msgspec
import pytest

from support.planning.cluster import OURS, headless, labelled, node, service, situation, slice_of
from zonewise.api.names import CONSUMER, MANAGED_BY, SAME_ZONE, STOCK_MANAGER
from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.errors import UsageError, ZonewiseError
from zonewise.objects import SERVICE_NAME, Key, Pod, Service, ServicePort, key_of
from zonewise.planning import whatif
from zonewise.planning.comparison import Comparison, MonthlyTraffic, compare
from zonewise.planning.data_plane import STOCK, DataPlanes
from zonewise.planning.forecast import ServiceForecast, ZoneAssignment, forecast_services
from zonewise.planning.snapshot import Snapshot, build_snapshot
from zonewise.routing import RoutingNodes
from zonewise.slices.decide.overlay import overlay

EVEN = {"a": 4, "b": 4, "c": 4}
REQUIRE = ("same-zone", "Require")


def every(_: object) -> bool:
    return True


def outlook(found: Snapshot, name: str = "shop") -> ServiceForecast:
    return next(one for one in forecast_services(found, every) if one.name == name)


def test_without_a_policy_a_third_stays_in_zone() -> None:
    found = outlook(situation(shop=EVEN))
    assert (found.policy, found.active, found.endpoints, found.slices) == ("none", False, 12, 1)
    assert found.in_zone == pytest.approx(1 / 3)
    assert found.assignment == tuple(ZoneAssignment(zone, ("*",), 4) for zone in "abc")


def test_a_preference_keeps_traffic_and_parts_the_slices_that_we_write() -> None:
    found = outlook(whatif.set_policy(situation(shop=EVEN, own=True), "same-zone", "Prefer", every))
    assert (found.policy, found.active, found.slices) == ("same-zone Prefer", True, 3)
    assert (found.in_zone, found.worst_overload) == (1.0, 0.0)
    assert found.assignment == tuple(ZoneAssignment(zone, (zone,), 4) for zone in "abc")


def test_hints_laid_over_stock_slices_make_no_more_of_them() -> None:
    found = outlook(whatif.set_policy(situation(shop=EVEN), "same-zone", "Prefer", every))
    assert (found.active, found.in_zone, found.slices) == (True, 1.0, 1)


def test_a_slice_for_one_zone_tells_who_writes_them() -> None:
    shop, bank = service("shop"), service("bank")
    parted = slice_of(bank, EVEN)
    parted.metadata.labels[CONSUMER] = "a"
    found = build_snapshot([node("a0", "a")], [shop, bank], [slice_of(shop, EVEN), parted])
    assert found.own
    assert not build_snapshot([node("a0", "a")], [shop], [slice_of(shop, EVEN)]).own


@pytest.mark.parametrize(
    ("filled", "number", "slices"),
    [
        ([100, 50], 150, 2),
        ([100, 50], 200, 2),  # room for all in the second
        ([100, 50], 201, 3),
        ([60, 60], 170, 3),  # 50 more fit into none: the stock controller moves nothing
        ([60, 60], 161, 3),
        ([60, 60], 160, 2),
        ([60, 60], 1, 1),
        ([60, 60], 0, 1),
        ([1], 350, 4),  # three full ones, and 49 more beside the first
    ],
)
def test_the_stock_controller_fills_slices_and_moves_nothing(filled: list[int], number: int, slices: int) -> None:
    shop = service("shop")
    whole = slice_of(shop, {"a": sum(filled)}).endpoints or ()
    parts = [
        msgspec.structs.replace(
            slice_of(shop, {}),
            metadata=msgspec.structs.replace(shop.metadata, name=f"shop-{place}", labels={SERVICE_NAME: "shop"}),
            endpoints=whole[sum(filled[:place]) : sum(filled[: place + 1])],
        )
        for place in range(len(filled))
    ]
    found = build_snapshot([node("a0", "a"), node("a1", "a")], [shop], parts)
    assert outlook(found).slices == len(filled)
    assert outlook(whatif.scale_service(found, "shop", number)).slices == slices


def test_a_policy_is_taken_away_by_an_empty_value() -> None:
    asked = whatif.set_policy(situation(shop=EVEN), "same-zone", "Prefer", every)
    assert outlook(whatif.set_policy(asked, "same-zone", "", every)).policy == "none"


def test_only_chosen_services_get_the_policy() -> None:
    both = situation(shop=EVEN, bank=EVEN)
    asked = whatif.set_policy(both, "trafficDistribution", "PreferSameZone", lambda one: one.metadata.name == "bank")
    assert outlook(asked, "shop").policy == "none"
    assert outlook(asked, "bank").policy == "trafficDistribution PreferSameZone"


def test_a_lost_zone_takes_its_nodes_and_endpoints() -> None:
    lost = whatif.lose_zone(situation(shop=EVEN), "a")
    assert outlook(lost).endpoints == 8
    assert lost.cluster.demand("topology.kubernetes.io/zone") == {"b": 2, "c": 2}


def test_hints_that_were_laid_over_stock_slices_are_remembered() -> None:
    """Eight endpoints are enough for a preference in force, though too few to start one: as the overlay decides."""
    asking = service("shop", **{"endpointslice.kubernetes.io/same-zone": "Prefer"})
    nodes = [node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)]
    bare = slice_of(asking, EVEN)
    bare.metadata.labels[MANAGED_BY] = STOCK_MANAGER
    laid = overlay(asking, [bare], RoutingNodes.of(nodes)).hints[key_of(bare)]
    endpoints = tuple(
        msgspec.structs.replace(each, hints=said) for each, said in zip(bare.endpoints or (), laid, strict=True)
    )
    in_force = build_snapshot(nodes, [asking], [msgspec.structs.replace(bare, endpoints=endpoints)])
    lost = outlook(whatif.lose_zone(in_force, "a"))
    assert (lost.endpoints, lost.active, lost.in_zone) == (8, True, 1.0)
    assert outlook(whatif.lose_zone(build_snapshot(nodes, [asking], [bare]), "a")).code == "BelowStart"


def hard(
    *, service_: Service | None = None, carriers: DataPlanes = STOCK, rule: tuple[str, str] = REQUIRE
) -> ServiceForecast:
    """Of a Service that zone c has no endpoint of."""
    nodes = [node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)]
    shop = service_ or service("shop")
    found = build_snapshot(nodes, [shop], [slice_of(shop, {"a": 4, "b": 4})], data_planes=carriers)
    return outlook(whatif.set_policy(found, *rule, every))


CUTTING = {
    "labelled for our proxy": {"service_": labelled(service("shop"), OURS)},
    "our proxy in kube-proxy's place": {"carriers": DataPlanes(all_services=True)},
    "headless, by our DNS": {"service_": headless(service("shop")), "carriers": DataPlanes(dns=True)},
}


@pytest.mark.parametrize("name", CUTTING)
def test_a_hard_rule_without_endpoints_cuts_nodes_off_where_ours_carry_it(name: str) -> None:
    found = hard(**CUTTING[name])  # type: ignore[arg-type]
    assert (found.cut_off, found.astray, found.losses) == (("c0", "c1"), (), ())
    assert (found.active, found.in_zone) == (True, 1.0)
    assert found.assignment == (ZoneAssignment("a", ("a",), 4), ZoneAssignment("b", ("b",), 4))


def test_a_hard_rule_is_soft_where_kube_proxy_carries_it() -> None:
    """Clients in c get all eight: a third of the traffic comes from there, and none of it stays."""
    found = hard()
    assert (found.cut_off, found.astray, found.active) == ((), ("c0", "c1"), False)
    assert found.in_zone == pytest.approx(2 / 3)
    assert found.losses
    assert found.sentence.endswith("but kube-proxy lets the clients of 2 nodes reach others, too")
    assert "label the Service for the Zonewise proxy" in found.remedy


def test_what_hints_cannot_say_kube_proxy_does_not_do() -> None:
    """No hint names a rack, so everybody gets everything."""
    found = hard(rule=("topology-keys", '["rack", "*"]'))
    assert (found.in_zone, found.cut_off) == (pytest.approx(1 / 3), ())
    kept = hard(rule=("topology-keys", '["topology.kubernetes.io/zone", "*"]'))
    assert (kept.in_zone, kept.astray, kept.active) == (pytest.approx(2 / 3), (), True)


def test_stock_dns_gives_everybody_everything() -> None:
    found = hard(service_=headless(service("shop")))
    assert (found.cut_off, found.astray) == ((), ("a0", "a1", "b0", "b1", "c0", "c1"))
    assert (found.active, found.in_zone) == (False, pytest.approx(1 / 3))
    assert found.sentence.endswith("but stock DNS lets the clients of 6 nodes reach others, too")
    assert "zonewise dns" in found.remedy
    asks_nothing = hard(service_=headless(service("shop")), rule=("same-zone", ""))
    assert (asks_nothing.astray, asks_nothing.losses) == ((), ())


@pytest.mark.parametrize("value", ["Require", "Prefer"])
def test_what_is_foreseen_of_kube_proxy_is_what_explain_says_once_hints_are_written(value: str) -> None:
    asking = service("shop", **{SAME_ZONE: value})
    nodes = [*(node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)), node("x", "")]
    bare = slice_of(asking, {"a": 7, "b": 7})
    bare.metadata.labels[MANAGED_BY] = STOCK_MANAGER
    laid = overlay(asking, [bare], RoutingNodes.of(nodes)).hints[key_of(bare)]
    endpoints = tuple(
        msgspec.structs.replace(each, hints=said) for each, said in zip(bare.endpoints or (), laid, strict=True)
    )
    slices = [msgspec.structs.replace(bare, endpoints=endpoints)]
    ported = msgspec.structs.replace(
        asking, spec=msgspec.structs.replace(asking.spec, ports=(ServicePort(name="http", port=80),))
    )
    (front,) = build_service_report(ported, slices, nodes).fronts
    foreseen = outlook(build_snapshot(nodes, [ported], slices))
    told = sum(client.in_zone * len(client.nodes) for client in front.clients) / len(nodes)
    assert foreseen.in_zone == pytest.approx(told)
    assert foreseen.cut_off == tuple(name for client in front.clients if not client.gets for name in client.nodes)


def test_added_nodes_send_traffic() -> None:
    more = whatif.add_nodes(whatif.set_policy(situation(shop=EVEN), "same-zone", "Prefer", every), "c", 2)
    assert more.cluster.demand("topology.kubernetes.io/zone") == {"a": 2, "b": 2, "c": 4}
    assert outlook(more).in_zone < 1.0


def test_what_nothing_was_done_to_is_foreseen_once() -> None:
    both = situation(shop=EVEN, bank=EVEN)
    scaled = {row.key.name: row for row in compare(both, whatif.scale_service(both, "shop", 20), every).rows}
    assert scaled["bank"].planned.outlook is scaled["bank"].today.outlook
    assert scaled["shop"].planned.outlook.endpoints == 20
    again = compare(both, whatif.lose_zone(both, "a"), every).rows
    assert [row.today.outlook for row in again] == [row.today.outlook for row in scaled.values()]
    assert {row.planned.outlook.endpoints for row in again} == {8}, "with other nodes all is looked at anew"


def test_a_new_zone_may_be_added() -> None:
    assert whatif.add_nodes(situation(shop=EVEN), "d", 1).cluster.demand("topology.kubernetes.io/zone")["d"] == 1


@pytest.mark.parametrize(
    ("number", "spread"), [(15, (5, 5, 5)), (13, (5, 4, 4)), (12, (4, 4, 4)), (7, (2, 2, 3)), (0, ())]
)
def test_scaling_keeps_the_spread(number: int, spread: tuple[int, ...]) -> None:
    found = outlook(whatif.scale_service(situation(shop=EVEN), "shop", number))
    assert sorted(part.endpoints for part in found.assignment) == sorted(spread)


def test_scaling_down_an_uneven_spread_takes_from_the_fullest_zone() -> None:
    found = outlook(whatif.scale_service(situation(shop={"a": 9, "b": 2, "c": 1}), "default/shop", 5))
    assert {part.zone: part.endpoints for part in found.assignment} == {"a": 2, "b": 2, "c": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: whatif.set_policy(s, "zone", "x", every), "'zone' is no policy; write one of same-node, same-zone"),
        (lambda s: whatif.set_policy(s, "zonewise.dev/zone", "x", every), "is no policy"),
        (lambda s: whatif.set_policy(s, "same-zone", "x", every), "--set same-zone=x: write Balanced, Prefer, Require"),
        (lambda s: whatif.set_policy(s, SAME_ZONE, "x", every), "write Balanced, Prefer, Require"),
        (lambda s: whatif.set_policy(s, "trafficDistribution", "Near", every), "write one of PreferClose"),
        (lambda s: whatif.set_policy(s, "topology-keys", "[1]", every), "write a list such as"),
        (lambda s: whatif.set_policy(s, "padding", "many", every), "write a number of endpoints"),
        (lambda s: whatif.set_policy(s, "same-zone", "Prefer", lambda _: False), "no Service is chosen"),
        (lambda s: whatif.lose_zone(s, "z"), "no node is in that zone; there is a, b, c"),
        (lambda s: whatif.add_nodes(s, "a", 0), "add 1 to 10,000 nodes"),
        (lambda s: whatif.scale_service(s, "nobody", 3), "there is no such Service"),
        (lambda s: whatif.scale_service(s, "shop", 10_001), "write a number from 0 to 10,000"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(change: object, said: str) -> None:
    with pytest.raises(ZonewiseError) as refused:
        change(situation(shop=EVEN))  # type: ignore[operator]
    assert said in str(refused.value)


def test_an_ambiguous_name_is_refused() -> None:
    twins = [service("shop", "x"), service("shop", "y")]
    found = build_snapshot([node("a0", "a")], twins, [slice_of(one, {"a": 1}) for one in twins])
    with pytest.raises(UsageError, match="2 Services have that name; write x/shop"):
        whatif.scale_service(found, "shop", 3)
    assert whatif.find_service(found, "y/shop", "--gb") == Key("y", "shop")


def comparison(traffic: MonthlyTraffic) -> Comparison:
    today = situation(shop=EVEN, bank={"a": 2, "b": 2, "c": 2})
    return compare(today, whatif.set_policy(today, "same-zone", "Prefer", every), every, traffic)


def test_cost_is_what_crosses_zones_times_the_price() -> None:
    found = comparison(MonthlyTraffic(gb=900, price_per_gb=0.02))
    shop = next(row for row in found.rows if row.key.name == "shop")
    assert shop.today.money is not None
    assert shop.planned.money is not None
    assert shop.today.money.gb == pytest.approx(600)  # 12 of 18 endpoints
    assert shop.today.money.cost == pytest.approx(600 * 2 / 3 * 0.02)
    assert shop.planned.money.cost == 0
    assert found.today.cost == pytest.approx(900 * 2 / 3 * 0.02)


def test_who_scales_one_service_pays_no_more_for_another() -> None:
    today = situation(shop=EVEN, bank=EVEN)
    found = compare(today, whatif.scale_service(today, "shop", 24), every, MonthlyTraffic(gb=900, price_per_gb=0.02))
    rows = {row.key.name: row for row in found.rows}
    assert (rows["bank"].differs, rows["shop"].differs) == (False, True)
    assert found.planned.cost == pytest.approx(found.today.cost)


def test_traffic_told_of_one_service_holds() -> None:
    found = comparison(MonthlyTraffic(gb=100, by_service={Key("default", "shop"): 7.0}, price_per_gb=1.0))
    assert {row.key.name: row.today.money.gb for row in found.rows if row.today.money} == {"shop": 7.0, "bank": 100.0}


def test_where_nothing_is_changed_nothing_differs() -> None:
    today = situation(shop=EVEN)
    found = compare(today, today, every)
    assert not any(row.differs for row in found.rows)
    assert found.changes == ()


def test_pods_serve_where_a_dump_has_no_slices() -> None:
    pods = [
        msgspec.convert(
            {
                "metadata": {"name": f"p{index}", "namespace": "default", "labels": {"app": "shop"}},
                "spec": {"nodeName": f"{zone}0"},
                "status": {
                    "phase": "Running",
                    "podIPs": [{"ip": f"10.2.0.{index}"}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
            Pod,
        )
        for index, zone in enumerate("aab")
    ]
    found = build_snapshot([node("a0", "a"), node("b0", "b")], [service("shop")], pods=pods)
    assert {part.zone: part.endpoints for part in outlook(found).assignment} == {"a": 2, "b": 1}
