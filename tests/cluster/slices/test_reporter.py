"""What people see of a Service's routing on a real API server: its annotation, its events, metrics; and zones drained."""

import json
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from support.slices.cluster import World, running, settled
from support.waiting import eventually
from zonewise.api.names import PADDING, ROUTING_STATE, SAME_ZONE, STARTING_THRESHOLD, TOPOLOGY_KEYS
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import EVENTS, NAMESPACES, NODES, SERVICES, Event
from zonewise.routing import DRAIN_ZONE

pytestmark = pytest.mark.xdist_group("slices")

PREFER = {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "3", PADDING: "0"}
DRAINED, EVENLY = ("zonewise-drained",), ("zonewise-drained-even",)


async def state(world: World, name: str = "web") -> dict[str, Any] | None:
    service = await world.client.get(SERVICES, name, world.namespace)
    text = service.metadata.annotations.get(ROUTING_STATE)
    return json.loads(text) if text else None


async def told(world: World, **expected: object) -> dict[str, Any]:
    """The state, once it says so."""

    async def as_expected() -> dict[str, Any] | None:
        found = await state(world)
        return found if found and expected.items() <= found.items() else None

    return await eventually(as_expected, f"a state with {expected}")


async def events(world: World, name: str = "web") -> list[Event]:
    found = (await world.client.list(EVENTS, world.namespace)).items
    return [event for event in found if event.regarding.name == name]


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def annotate_node(world: World, name: str, zone: str | None) -> None:
    await world.client.patch(NODES, name, MergePatch({"metadata": {"annotations": {DRAIN_ZONE: zone}}}))


async def annotate_namespace(world: World, zone: str | None) -> None:
    await world.client.patch(NAMESPACES, world.namespace, MergePatch({"metadata": {"annotations": {DRAIN_ZONE: zone}}}))


async def test_a_service_says_how_it_is_routed_and_is_told_once(world: World) -> None:
    await world.service("web", annotations=PREFER)
    await world.service("plain")
    await world.spread("web", {"zone-a": 1, "zone-b": 1})
    async with running(world.client):
        first = await told(world, active=False, code="BelowStart")
        assert first["remedy"] == "run 1 more, or lower zonewise.dev/starting-threshold"
        await world.pod("third", {"app": "web"}, "zone-c-0")
        second = await told(world, active=True, code="Preferred", inZone=1.0)
        labels = {"namespace": world.namespace, "service": "web"}
        assert sample("zonewise_predicted_in_zone_share", **labels) == 1.0
        assert sample("zonewise_predicted_worst_overload", **labels) == 0.0
        assert sample("zonewise_routing_flips_total", **labels) == 1.0
        flat = {"policy": "same-zone Prefer", "code": "Preferred", "active": "true"}
        assert (sample("zonewise_services", **flat) or 0) >= 1
        await eventually(lambda: reasons(world, {"BelowStart", "Preferred"}))
    async with running(world.client):
        await world.annotate("web", {"team": "blue"})
        await settled(world)
    assert await state(world) == second
    assert await state(world, "plain") is None
    assert all(event.series is None for event in await events(world))
    assert len(await events(world)) == 2


async def reasons(world: World, expected: set[str]) -> bool:
    return {event.reason for event in await events(world)} == expected


async def test_bad_values_make_events_and_no_write_loop(world: World) -> None:
    await world.service("web", annotations={TOPOLOGY_KEYS: '["a", "a"', SAME_ZONE: "prefer", PADDING: "-1"})
    await world.spread("web", {"zone-a": 5})
    async with running(world.client):
        found = await told(world, policy="same-zone Balanced", active=True)
        assert len(found["complaints"]) == 4
        await eventually(lambda: reasons(world, {"Balanced", "InvalidValue", "NoEffect"}))
        version = (await world.client.get(SERVICES, "web", world.namespace)).metadata.resource_version
        await world.pod("another", {"app": "web"}, "zone-b-0")
        await settled(world)
        assert (await world.client.get(SERVICES, "web", world.namespace)).metadata.resource_version == version


async def test_the_annotation_goes_with_the_policy_and_comes_back_when_somebody_removes_it(world: World) -> None:
    await world.service("web", annotations={SAME_ZONE: "Require"})
    await world.spread("web", {"zone-a": 1})
    async with running(world.client):
        await told(world, code="Required")
        await world.annotate("web", {ROUTING_STATE: None})
        await world.annotate("web", {"poke": "it"})
        await told(world, code="Required")
        await world.annotate("web", {SAME_ZONE: None})
        await eventually(lambda: gone(world))


async def gone(world: World) -> bool:
    return await state(world) is None


async def test_a_service_whose_slices_become_its_owners_is_no_longer_measured(world: World) -> None:
    await world.service("web", annotations={SAME_ZONE: "Require"})
    labels = {"namespace": world.namespace, "service": "web"}
    async with running(world.client):
        await told(world, code="NoEndpoints")
        assert sample("zonewise_predicted_in_zone_share", **labels) is not None
        await world.client.patch(SERVICES, "web", MergePatch({"spec": {"selector": None}}), world.namespace)
        await eventually(lambda: sample("zonewise_predicted_in_zone_share", **labels) is None)


async def test_where_annotations_are_full_events_still_tell_and_nothing_is_tried_again(world: World) -> None:
    """The API takes 256 KiB of annotations in all."""
    await world.service("web", annotations={SAME_ZONE: "Require", "full": "x" * (256 * 1024 - 100)})
    await world.spread("web", {"zone-a": 6, "zone-b": 6, "zone-c": 6})
    with capture_logs() as lines:
        async with running(world.client):
            await eventually(lambda: reasons(world, {"Required", "NeedsProxy"}))
            await world.pod("another", {"app": "web"}, "zone-a-0")
            await settled(world)
        assert await reasons(world, {"Required", "NeedsProxy"})
    assert len([line for line in lines if line["event"] == "routing state rejected"]) == 1
    assert await gone(world)


async def test_a_service_of_the_same_name_starts_anew(world: World) -> None:
    await world.service("web", annotations={SAME_ZONE: "Require"})
    async with running(world.client):
        await told(world, code="NoEndpoints")
        await world.client.delete(SERVICES, "web", world.namespace)
        await world.service("web", annotations=PREFER)
        await told(world, code="NoEndpoints", policy="same-zone Prefer")


async def test_traffic_leaves_a_zone_and_returns(world: World) -> None:
    """By each of the three who may ask, beside a policy and without one."""
    await world.service("web")
    await world.service("near", annotations=PREFER, selector={"app": "web"})
    await world.spread("web", {"zone-a": 2, "zone-b": 2, "zone-c": 2})
    async with running(world.client):
        for who, start, stop in (
            ("Service", lambda: world.annotate("web", {DRAIN_ZONE: "zone-a"}), lambda: world.annotate("web", {DRAIN_ZONE: None})),
            ("Namespace", lambda: annotate_namespace(world, "zone-a"), lambda: annotate_namespace(world, None)),
            ("Node", lambda: annotate_node(world, "zone-a-0", "zone-a"), lambda: annotate_node(world, "zone-a-0", None)),
        ):  # fmt: skip
            await start()
            found = await told(world, code="ZoneDrained", drained=["zone-a"])
            assert found["blame"][0].startswith(f"{who} ")
            await eventually(lambda: hinted(world, "web", EVENLY, ("zone-a", "zone-b", "zone-c")), f"drained by {who}")
            if who != "Service":
                await eventually(lambda: hinted(world, "near", DRAINED, None))
            await stop()
            await eventually(lambda: hinted(world, "web", (), ()), f"returned after {who}")
            await eventually(lambda: hinted(world, "near", ("zone-a",), None))
            await eventually(lambda: gone(world))
        await eventually(lambda: reasons(world, {"ZoneDrained", "DrainEnded"}))


async def hinted(world: World, service: str, there: tuple[str, ...], elsewhere: tuple[str, ...] | None) -> bool:
    """The hints of zone-a's endpoints, and of the others where all have the same."""
    hints = await world.hints(service)
    in_zone_a = {zones for pod, zones in hints.items() if "zone-a" in pod}
    others = {zones for pod, zones in hints.items() if "zone-a" not in pod}
    return in_zone_a == {there} and (elsewhere is None or others == {elsewhere})


async def test_a_zone_that_has_all_endpoints_is_not_drained(world: World) -> None:
    await world.service("web", annotations={DRAIN_ZONE: "zone-a"})
    await world.spread("web", {"zone-a": 2})
    async with running(world.client):
        await told(world, code="NotDrained", active=False)
        assert set((await world.hints("web")).values()) == {()}
        await world.pod("elsewhere", {"app": "web"}, "zone-b-0")
        await told(world, code="ZoneDrained", active=True)
        assert (await world.hints("web"))["elsewhere"] == ("zone-a", "zone-b", "zone-c")


async def test_who_says_it_wrong_is_told_there(world: World) -> None:
    await world.service("web")
    await annotate_namespace(world, "nowhere")
    await annotate_node(world, "zone-b-0", "zone-a")
    try:
        async with running(world.client):
            await world.spread("web", {"zone-a": 1, "zone-b": 1})
            await eventually(lambda: complaint(world, world.namespace, "no node is in such a zone"))
            await eventually(lambda: complaint(world, "zone-b-0", "the node is in zone zone-b"))
            await settled(world)
        assert await state(world) is None
    finally:
        await annotate_node(world, "zone-b-0", None)


async def complaint(world: World, name: str, words: str) -> bool:
    found = (await world.client.list(EVENTS, "default")).items
    return any(event.regarding.name == name and words in event.note for event in found)
