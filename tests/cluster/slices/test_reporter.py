"""Reports about a Service on a real API server: its annotation, events and metrics; and drained zones."""

import json
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from support.slices.cluster import ClusterNamespace, running, settled
from support.waiting import eventually
from zonewise.api.names import PADDING, ROUTING_STATE, SAME_ZONE, STARTING_THRESHOLD, TOPOLOGY_KEYS
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import EVENTS, NAMESPACES, NODES, SERVICES, Event
from zonewise.routing import DRAIN_ZONE

pytestmark = pytest.mark.xdist_group("slices")

PREFER = {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "3", PADDING: "0"}
DRAINED, EVENLY = ("zonewise-drained",), ("zonewise-drained-even",)


async def state(ns: ClusterNamespace, name: str = "web") -> dict[str, Any] | None:
    service = await ns.client.get(SERVICES, name, ns.namespace)
    text = service.metadata.annotations.get(ROUTING_STATE)
    return json.loads(text) if text else None


async def state_with(ns: ClusterNamespace, **expected: object) -> dict[str, Any]:
    """The state, once it has these values."""

    async def as_expected() -> dict[str, Any] | None:
        current = await state(ns)
        return current if current and expected.items() <= current.items() else None

    return await eventually(as_expected, f"a state with {expected}")


async def events(ns: ClusterNamespace, name: str = "web") -> list[Event]:
    all_events = (await ns.client.list(EVENTS, ns.namespace)).items
    return [event for event in all_events if event.regarding.name == name]


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def annotate_node(ns: ClusterNamespace, name: str, zone: str | None) -> None:
    await ns.client.patch(NODES, name, MergePatch({"metadata": {"annotations": {DRAIN_ZONE: zone}}}))


async def annotate_namespace(ns: ClusterNamespace, zone: str | None) -> None:
    await ns.client.patch(NAMESPACES, ns.namespace, MergePatch({"metadata": {"annotations": {DRAIN_ZONE: zone}}}))


async def test_state_is_annotated_and_reported_once(ns: ClusterNamespace) -> None:
    await ns.service("web", annotations=PREFER)
    await ns.service("plain")
    await ns.spread("web", {"zone-a": 1, "zone-b": 1})
    async with running(ns.client):
        first = await state_with(ns, active=False, code="BelowStart")
        assert first["remedy"] == "run 1 more, or lower zonewise.dev/starting-threshold"
        await ns.pod("third", {"app": "web"}, "zone-c-0")
        second = await state_with(ns, active=True, code="Preferred", inZone=1.0)
        labels = {"namespace": ns.namespace, "service": "web"}
        assert sample("zonewise_predicted_in_zone_share", **labels) == 1.0
        assert sample("zonewise_predicted_worst_overload", **labels) == 0.0
        assert sample("zonewise_routing_flips_total", **labels) == 1.0
        flat = {"policy": "same-zone Prefer", "code": "Preferred", "active": "true"}
        assert (sample("zonewise_services", **flat) or 0) >= 1
        await eventually(lambda: reasons(ns, {"BelowStart", "Preferred"}))
    async with running(ns.client):
        await ns.annotate("web", {"team": "blue"})
        await settled(ns)
    assert await state(ns) == second
    assert await state(ns, "plain") is None
    assert all(event.series is None for event in await events(ns))
    assert len(await events(ns)) == 2


async def reasons(ns: ClusterNamespace, expected: set[str]) -> bool:
    return {event.reason for event in await events(ns)} == expected


async def test_bad_values_make_events_and_no_write_loop(ns: ClusterNamespace) -> None:
    await ns.service("web", annotations={TOPOLOGY_KEYS: '["a", "a"', SAME_ZONE: "prefer", PADDING: "-1"})
    await ns.spread("web", {"zone-a": 5})
    async with running(ns.client):
        reported = await state_with(ns, policy="same-zone Balanced", active=True)
        assert len(reported["complaints"]) == 4
        await eventually(lambda: reasons(ns, {"Balanced", "InvalidValue", "NoEffect"}))
        version = (await ns.client.get(SERVICES, "web", ns.namespace)).metadata.resource_version
        await ns.pod("another", {"app": "web"}, "zone-b-0")
        await settled(ns)
        assert (await ns.client.get(SERVICES, "web", ns.namespace)).metadata.resource_version == version


async def test_annotation_is_restored_and_removed_with_the_policy(ns: ClusterNamespace) -> None:
    await ns.service("web", annotations={SAME_ZONE: "Require"})
    await ns.spread("web", {"zone-a": 1})
    async with running(ns.client):
        await state_with(ns, code="Required")
        await ns.annotate("web", {ROUTING_STATE: None})
        await ns.annotate("web", {"poke": "it"})
        await state_with(ns, code="Required")
        await ns.annotate("web", {SAME_ZONE: None})
        await eventually(lambda: gone(ns))


async def gone(ns: ClusterNamespace) -> bool:
    return await state(ns) is None


async def test_service_without_selector_has_no_metrics(ns: ClusterNamespace) -> None:
    await ns.service("web", annotations={SAME_ZONE: "Require"})
    labels = {"namespace": ns.namespace, "service": "web"}
    async with running(ns.client):
        await state_with(ns, code="NoEndpoints")
        assert sample("zonewise_predicted_in_zone_share", **labels) is not None
        await ns.client.patch(SERVICES, "web", MergePatch({"spec": {"selector": None}}), ns.namespace)
        await eventually(lambda: sample("zonewise_predicted_in_zone_share", **labels) is None)


async def test_events_without_retries_if_annotations_are_full(ns: ClusterNamespace) -> None:
    """The API server accepts 256 KiB of annotations in all."""
    await ns.service("web", annotations={SAME_ZONE: "Require", "full": "x" * (256 * 1024 - 100)})
    await ns.spread("web", {"zone-a": 6, "zone-b": 6, "zone-c": 6})
    with capture_logs() as lines:
        async with running(ns.client):
            await eventually(lambda: reasons(ns, {"Required", "NeedsProxy"}))
            await ns.pod("another", {"app": "web"}, "zone-a-0")
            await settled(ns)
        assert await reasons(ns, {"Required", "NeedsProxy"})
    assert len([line for line in lines if line["event"] == "routing state rejected"]) == 1
    assert await gone(ns)


async def test_recreated_service_has_its_own_state(ns: ClusterNamespace) -> None:
    await ns.service("web", annotations={SAME_ZONE: "Require"})
    async with running(ns.client):
        await state_with(ns, code="NoEndpoints")
        await ns.client.delete(SERVICES, "web", ns.namespace)
        await ns.service("web", annotations=PREFER)
        await state_with(ns, code="NoEndpoints", policy="same-zone Prefer")


async def test_traffic_leaves_a_zone_and_returns(ns: ClusterNamespace) -> None:
    """Requested by each of the three kinds of object, with a policy and without one."""
    await ns.service("web")
    await ns.service("near", annotations=PREFER, selector={"app": "web"})
    await ns.spread("web", {"zone-a": 2, "zone-b": 2, "zone-c": 2})
    async with running(ns.client):
        for requester, start, stop in (
            ("Service", lambda: ns.annotate("web", {DRAIN_ZONE: "zone-a"}), lambda: ns.annotate("web", {DRAIN_ZONE: None})),
            ("Namespace", lambda: annotate_namespace(ns, "zone-a"), lambda: annotate_namespace(ns, None)),
            ("Node", lambda: annotate_node(ns, "zone-a-0", "zone-a"), lambda: annotate_node(ns, "zone-a-0", None)),
        ):  # fmt: skip
            await start()
            reported = await state_with(ns, code="ZoneDrained", drained=["zone-a"])
            assert reported["blame"][0].startswith(f"{requester} ")
            await eventually(
                lambda: hinted(ns, "web", EVENLY, ("zone-a", "zone-b", "zone-c")), f"drained by {requester}"
            )
            if requester != "Service":
                await eventually(lambda: hinted(ns, "near", DRAINED, None))
            await stop()
            await eventually(lambda: hinted(ns, "web", (), ()), f"returned after {requester}")
            await eventually(lambda: hinted(ns, "near", ("zone-a",), None))
            await eventually(lambda: gone(ns))
        await eventually(lambda: reasons(ns, {"ZoneDrained", "DrainEnded"}))


async def hinted(
    ns: ClusterNamespace, service: str, in_zone: tuple[str, ...], elsewhere: tuple[str, ...] | None
) -> bool:
    """Whether zone-a's endpoints have these hints, and all others the same given ones."""
    hints = await ns.hints(service)
    in_zone_a = {zones for pod, zones in hints.items() if "zone-a" in pod}
    outside = {zones for pod, zones in hints.items() if "zone-a" not in pod}
    return in_zone_a == {in_zone} and (elsewhere is None or outside == {elsewhere})


async def test_zone_with_all_endpoints_is_not_drained(ns: ClusterNamespace) -> None:
    await ns.service("web", annotations={DRAIN_ZONE: "zone-a"})
    await ns.spread("web", {"zone-a": 2})
    async with running(ns.client):
        await state_with(ns, code="NotDrained", active=False)
        assert set((await ns.hints("web")).values()) == {()}
        await ns.pod("elsewhere", {"app": "web"}, "zone-b-0")
        await state_with(ns, code="ZoneDrained", active=True)
        assert (await ns.hints("web"))["elsewhere"] == ("zone-a", "zone-b", "zone-c")


async def test_complaints_about_nodes_and_namespaces_are_events_there(ns: ClusterNamespace) -> None:
    await ns.service("web")
    await annotate_namespace(ns, "nowhere")
    await annotate_node(ns, "zone-b-0", "zone-a")
    try:
        async with running(ns.client):
            await ns.spread("web", {"zone-a": 1, "zone-b": 1})
            await eventually(lambda: complaint(ns, ns.namespace, "no node is in such a zone"))
            await eventually(lambda: complaint(ns, "zone-b-0", "the node is in zone zone-b"))
            await settled(ns)
        assert await state(ns) is None
    finally:
        await annotate_node(ns, "zone-b-0", None)


async def complaint(ns: ClusterNamespace, name: str, words: str) -> bool:
    all_events = (await ns.client.list(EVENTS, "default")).items
    return any(event.regarding.name == name and words in event.note for event in all_events)


async def test_a_state_of_a_newer_release_stays_and_the_service_is_routed(ns: ClusterNamespace) -> None:
    newer = '{"version": 2, "what": "only a newer release knows"}'
    await ns.service("web", annotations={**PREFER, ROUTING_STATE: newer})
    await ns.service("torn", selector={"app": "web"}, annotations={**PREFER, ROUTING_STATE: '{"version": 1, "pol'})
    await ns.spread("web", {"zone-a": 3, "zone-b": 3, "zone-c": 3})
    with capture_logs() as lines:
        async with running(ns.client):
            await settled(ns)
            await eventually(lambda: state_is_active(ns, "torn"), "a new state")
            await ns.annotate("web", {SAME_ZONE: None})
            await settled(ns)
    service = await ns.client.get(SERVICES, "web", ns.namespace)
    assert service.metadata.annotations[ROUTING_STATE] == newer
    problems = [line["problem"] for line in lines if line["event"] == "routing state unusable"]
    assert sorted(problem.split(" ")[2] for problem in problems) == ["can't", "has"], "each once"


async def state_is_active(ns: ClusterNamespace, name: str) -> bool:
    service = await ns.client.get(SERVICES, name, ns.namespace)
    return '"active":true' in service.metadata.annotations[ROUTING_STATE]
