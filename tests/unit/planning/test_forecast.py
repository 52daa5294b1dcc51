"""Forecasts of Services, and the effect of each what-if change."""

from __future__ import annotations

import msgspec
import pytest

from support.planning.cluster import ZONEWISE_PROXY, headless, labelled, make_snapshot, node, service, slice_of
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


def all_services(_: object) -> bool:
    return True


def forecast_of(snapshot: Snapshot, name: str = "shop") -> ServiceForecast:
    return next(forecast for forecast in forecast_services(snapshot, all_services) if forecast.name == name)


def test_without_a_policy_a_third_stays_in_zone() -> None:
    forecast = forecast_of(make_snapshot(shop=EVEN))
    assert (forecast.policy, forecast.active, forecast.endpoints, forecast.slices) == ("none", False, 12, 1)
    assert forecast.in_zone == pytest.approx(1 / 3)
    assert forecast.assignment == tuple(ZoneAssignment(zone, ("*",), 4) for zone in "abc")


def test_a_preference_in_mode_own_makes_a_slice_per_zone() -> None:
    forecast = forecast_of(whatif.set_policy(make_snapshot(shop=EVEN, own=True), "same-zone", "Prefer", all_services))
    assert (forecast.policy, forecast.active, forecast.slices) == ("same-zone Prefer", True, 3)
    assert (forecast.in_zone, forecast.worst_overload) == (1.0, 0.0)
    assert forecast.assignment == tuple(ZoneAssignment(zone, (zone,), 4) for zone in "abc")


def test_overlaid_hints_keep_the_number_of_slices() -> None:
    forecast = forecast_of(whatif.set_policy(make_snapshot(shop=EVEN), "same-zone", "Prefer", all_services))
    assert (forecast.active, forecast.in_zone, forecast.slices) == (True, 1.0, 1)


def test_a_slice_for_one_zone_means_mode_own() -> None:
    shop, bank = service("shop"), service("bank")
    parted = slice_of(bank, EVEN)
    parted.metadata.labels[CONSUMER] = "a"
    snapshot = build_snapshot([node("a0", "a")], [shop, bank], [slice_of(shop, EVEN), parted])
    assert snapshot.own
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
def test_the_stock_controller_fills_slices_without_moves(filled: list[int], number: int, slices: int) -> None:
    shop = service("shop")
    endpoints = slice_of(shop, {"a": sum(filled)}).endpoints or ()
    parts = [
        msgspec.structs.replace(
            slice_of(shop, {}),
            metadata=msgspec.structs.replace(shop.metadata, name=f"shop-{index}", labels={SERVICE_NAME: "shop"}),
            endpoints=endpoints[sum(filled[:index]) : sum(filled[: index + 1])],
        )
        for index in range(len(filled))
    ]
    snapshot = build_snapshot([node("a0", "a"), node("a1", "a")], [shop], parts)
    assert forecast_of(snapshot).slices == len(filled)
    assert forecast_of(whatif.scale_service(snapshot, "shop", number)).slices == slices


def test_an_empty_value_removes_a_policy() -> None:
    changed = whatif.set_policy(make_snapshot(shop=EVEN), "same-zone", "Prefer", all_services)
    assert forecast_of(whatif.set_policy(changed, "same-zone", "", all_services)).policy == "none"


def test_only_chosen_services_get_the_policy() -> None:
    both = make_snapshot(shop=EVEN, bank=EVEN)
    changed = whatif.set_policy(
        both, "trafficDistribution", "PreferSameZone", lambda service: service.metadata.name == "bank"
    )
    assert forecast_of(changed, "shop").policy == "none"
    assert forecast_of(changed, "bank").policy == "trafficDistribution PreferSameZone"


def test_a_lost_zone_removes_its_nodes_and_endpoints() -> None:
    lost = whatif.lose_zone(make_snapshot(shop=EVEN), "a")
    assert forecast_of(lost).endpoints == 8
    assert lost.cluster.demand("topology.kubernetes.io/zone") == {"b": 2, "c": 2}


def test_overlaid_hints_keep_a_preference_in_force() -> None:
    """Eight endpoints keep a preference in force, but are too few to start one, as in the overlay."""
    state = '{"policy": "same-zone Prefer"}'
    shop = service("shop", **{"endpointslice.kubernetes.io/same-zone": "Prefer", "zonewise.dev/routing": state})
    nodes = [node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)]
    bare = slice_of(shop, EVEN)
    bare.metadata.labels[MANAGED_BY] = STOCK_MANAGER
    laid = overlay(shop, [bare], RoutingNodes.of(nodes)).hints[key_of(bare)]
    endpoints = tuple(
        msgspec.structs.replace(endpoint, hints=hints)
        for endpoint, hints in zip(bare.endpoints or (), laid, strict=True)
    )
    in_force = build_snapshot(nodes, [shop], [msgspec.structs.replace(bare, endpoints=endpoints)])
    lost = forecast_of(whatif.lose_zone(in_force, "a"))
    assert (lost.endpoints, lost.active, lost.in_zone) == (8, True, 1.0)
    assert forecast_of(whatif.lose_zone(build_snapshot(nodes, [shop], [bare]), "a")).code == "BelowStart"


def forecast_hard_rule(
    *, shop: Service | None = None, data_planes: DataPlanes = STOCK, rule: tuple[str, str] = REQUIRE
) -> ServiceForecast:
    """For a Service without endpoints in zone c."""
    nodes = [node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)]
    shop = shop or service("shop")
    snapshot = build_snapshot(nodes, [shop], [slice_of(shop, {"a": 4, "b": 4})], data_planes=data_planes)
    return forecast_of(whatif.set_policy(snapshot, *rule, all_services))


ZONEWISE_DATA_PLANES = {
    "labelled for our proxy": {"shop": labelled(service("shop"), ZONEWISE_PROXY)},
    "our proxy replaces kube-proxy": {"data_planes": DataPlanes(all_services=True)},
    "headless, by our DNS": {"shop": headless(service("shop")), "data_planes": DataPlanes(dns=True)},
}


@pytest.mark.parametrize("name", ZONEWISE_DATA_PLANES)
def test_a_hard_rule_cuts_nodes_off_in_zonewise_data_planes(name: str) -> None:
    forecast = forecast_hard_rule(**ZONEWISE_DATA_PLANES[name])  # type: ignore[arg-type]
    assert (forecast.cut_off, forecast.astray, forecast.losses) == (("c0", "c1"), (), ())
    assert (forecast.active, forecast.in_zone) == (True, 1.0)
    assert forecast.assignment == (ZoneAssignment("a", ("a",), 4), ZoneAssignment("b", ("b",), 4))


def test_a_hard_rule_is_soft_behind_kube_proxy() -> None:
    """Clients in c get all eight endpoints. A third of the traffic comes from there, and none of it stays."""
    forecast = forecast_hard_rule()
    assert (forecast.cut_off, forecast.astray, forecast.active) == ((), ("c0", "c1"), False)
    assert forecast.in_zone == pytest.approx(2 / 3)
    assert forecast.losses
    assert forecast.sentence.endswith("but kube-proxy lets the clients of 2 nodes reach others, too")
    assert "label the Service for the Zonewise proxy" in forecast.remedy


def test_kube_proxy_ignores_what_hints_cannot_express() -> None:
    """Hints can't name a rack, so every client gets every endpoint."""
    forecast = forecast_hard_rule(rule=("topology-keys", '["rack", "*"]'))
    assert (forecast.in_zone, forecast.cut_off) == (pytest.approx(1 / 3), ())
    kept = forecast_hard_rule(rule=("topology-keys", '["topology.kubernetes.io/zone", "*"]'))
    assert (kept.in_zone, kept.astray, kept.active) == (pytest.approx(2 / 3), (), True)


def test_stock_dns_gives_every_client_every_endpoint() -> None:
    forecast = forecast_hard_rule(shop=headless(service("shop")))
    assert (forecast.cut_off, forecast.astray) == ((), ("a0", "a1", "b0", "b1", "c0", "c1"))
    assert (forecast.active, forecast.in_zone) == (False, pytest.approx(1 / 3))
    assert forecast.sentence.endswith("but stock DNS lets the clients of 6 nodes reach others, too")
    assert "zonewise dns" in forecast.remedy
    no_policy = forecast_hard_rule(shop=headless(service("shop")), rule=("same-zone", ""))
    assert (no_policy.astray, no_policy.losses) == ((), ())


@pytest.mark.parametrize("value", ["Require", "Prefer"])
def test_the_forecast_for_kube_proxy_agrees_with_explain(value: str) -> None:
    shop = service("shop", **{SAME_ZONE: value})
    nodes = [*(node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)), node("x", "")]
    bare = slice_of(shop, {"a": 7, "b": 7})
    bare.metadata.labels[MANAGED_BY] = STOCK_MANAGER
    laid = overlay(shop, [bare], RoutingNodes.of(nodes)).hints[key_of(bare)]
    endpoints = tuple(
        msgspec.structs.replace(endpoint, hints=hints)
        for endpoint, hints in zip(bare.endpoints or (), laid, strict=True)
    )
    slices = [msgspec.structs.replace(bare, endpoints=endpoints)]
    ported = msgspec.structs.replace(
        shop, spec=msgspec.structs.replace(shop.spec, ports=(ServicePort(name="http", port=80),))
    )
    (front,) = build_service_report(ported, slices, nodes).fronts
    predicted = forecast_of(build_snapshot(nodes, [ported], slices))
    in_zone = sum(client.in_zone * len(client.nodes) for client in front.clients) / len(nodes)
    assert predicted.in_zone == pytest.approx(in_zone)
    assert predicted.cut_off == tuple(name for client in front.clients if not client.gets for name in client.nodes)


def test_added_nodes_are_clients() -> None:
    more = whatif.add_nodes(whatif.set_policy(make_snapshot(shop=EVEN), "same-zone", "Prefer", all_services), "c", 2)
    assert more.cluster.demand("topology.kubernetes.io/zone") == {"a": 2, "b": 2, "c": 4}
    assert forecast_of(more).in_zone < 1.0


def test_forecasts_of_unchanged_services_are_reused() -> None:
    both = make_snapshot(shop=EVEN, bank=EVEN)
    scaled = {row.key.name: row for row in compare(both, whatif.scale_service(both, "shop", 20), all_services).rows}
    assert scaled["bank"].planned.outlook is scaled["bank"].today.outlook
    assert scaled["shop"].planned.outlook.endpoints == 20
    again = compare(both, whatif.lose_zone(both, "a"), all_services).rows
    assert [row.today.outlook for row in again] == [row.today.outlook for row in scaled.values()]
    assert {row.planned.outlook.endpoints for row in again} == {8}, "changed nodes affect every Service"


def test_nodes_can_be_added_in_a_new_zone() -> None:
    assert whatif.add_nodes(make_snapshot(shop=EVEN), "d", 1).cluster.demand("topology.kubernetes.io/zone")["d"] == 1


@pytest.mark.parametrize(
    ("number", "spread"), [(15, (5, 5, 5)), (13, (5, 4, 4)), (12, (4, 4, 4)), (7, (2, 2, 3)), (0, ())]
)
def test_scaling_keeps_the_spread(number: int, spread: tuple[int, ...]) -> None:
    forecast = forecast_of(whatif.scale_service(make_snapshot(shop=EVEN), "shop", number))
    assert sorted(part.endpoints for part in forecast.assignment) == sorted(spread)


def test_scaling_down_an_uneven_spread_takes_from_the_fullest_zone() -> None:
    forecast = forecast_of(whatif.scale_service(make_snapshot(shop={"a": 9, "b": 2, "c": 1}), "default/shop", 5))
    assert {part.zone: part.endpoints for part in forecast.assignment} == {"a": 2, "b": 2, "c": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: whatif.set_policy(s, "zone", "x", all_services),
            "'zone' is no policy; write one of same-node, same-zone",
        ),
        (lambda s: whatif.set_policy(s, "zonewise.dev/zone", "x", all_services), "is no policy"),
        (
            lambda s: whatif.set_policy(s, "same-zone", "x", all_services),
            "--set same-zone=x: write Balanced, Prefer, Require",
        ),
        (lambda s: whatif.set_policy(s, SAME_ZONE, "x", all_services), "write Balanced, Prefer, Require"),
        (lambda s: whatif.set_policy(s, "trafficDistribution", "Near", all_services), "write one of PreferClose"),
        (lambda s: whatif.set_policy(s, "topology-keys", "[1]", all_services), "write a list such as"),
        (lambda s: whatif.set_policy(s, "padding", "many", all_services), "write a number of endpoints"),
        (lambda s: whatif.set_policy(s, "same-zone", "Prefer", lambda _: False), "no Service is chosen"),
        (lambda s: whatif.lose_zone(s, "z"), "no node is in that zone; there is a, b, c"),
        (lambda s: whatif.add_nodes(s, "a", 0), "add 1 to 10,000 nodes"),
        (lambda s: whatif.scale_service(s, "nobody", 3), "there is no such Service"),
        (lambda s: whatif.scale_service(s, "shop", 10_001), "write a number from 0 to 10,000"),
    ],
)
def test_invalid_changes_are_rejected(change: object, message: str) -> None:
    with pytest.raises(ZonewiseError) as refused:
        change(make_snapshot(shop=EVEN))  # type: ignore[operator]
    assert message in str(refused.value)


def test_an_ambiguous_service_name_is_rejected() -> None:
    twins = [service("shop", "x"), service("shop", "y")]
    snapshot = build_snapshot([node("a0", "a")], twins, [slice_of(twin, {"a": 1}) for twin in twins])
    with pytest.raises(UsageError, match="2 Services have that name; write x/shop"):
        whatif.scale_service(snapshot, "shop", 3)
    assert whatif.find_service(snapshot, "y/shop", "--gb") == Key("y", "shop")


def comparison(traffic: MonthlyTraffic) -> Comparison:
    today = make_snapshot(shop=EVEN, bank={"a": 2, "b": 2, "c": 2})
    return compare(today, whatif.set_policy(today, "same-zone", "Prefer", all_services), all_services, traffic)


def test_cost_is_cross_zone_traffic_times_price() -> None:
    result = comparison(MonthlyTraffic(gb=900, price_per_gb=0.02))
    shop = next(row for row in result.rows if row.key.name == "shop")
    assert shop.today.money is not None
    assert shop.planned.money is not None
    assert shop.today.money.gb == pytest.approx(600)  # 12 of 18 endpoints
    assert shop.today.money.cost == pytest.approx(600 * 2 / 3 * 0.02)
    assert shop.planned.money.cost == 0
    assert result.today.cost == pytest.approx(900 * 2 / 3 * 0.02)


def test_scaling_one_service_keeps_the_cost_of_others() -> None:
    today = make_snapshot(shop=EVEN, bank=EVEN)
    result = compare(
        today, whatif.scale_service(today, "shop", 24), all_services, MonthlyTraffic(gb=900, price_per_gb=0.02)
    )
    rows = {row.key.name: row for row in result.rows}
    assert (rows["bank"].differs, rows["shop"].differs) == (False, True)
    assert result.planned.cost == pytest.approx(result.today.cost)


def test_given_traffic_of_a_service_is_kept() -> None:
    result = comparison(MonthlyTraffic(gb=100, by_service={Key("default", "shop"): 7.0}, price_per_gb=1.0))
    assert {row.key.name: row.today.money.gb for row in result.rows if row.today.money} == {
        "shop": 7.0,
        "bank": 100.0,
    }


def test_no_change_makes_no_difference() -> None:
    today = make_snapshot(shop=EVEN)
    result = compare(today, today, all_services)
    assert not any(row.differs for row in result.rows)
    assert result.changes == ()


def test_endpoints_come_from_pods_without_slices() -> None:
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
    snapshot = build_snapshot([node("a0", "a"), node("b0", "b")], [service("shop")], pods=pods)
    assert {part.zone: part.endpoints for part in forecast_of(snapshot).assignment} == {"a": 2, "b": 1}
