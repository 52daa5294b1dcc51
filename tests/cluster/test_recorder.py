"""Event recorder on a real API server, read back with the client and kubectl."""

import asyncio
import base64
import json
import re
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Never

import pytest
import yaml
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import EventLimits, Recorder, Severity, reference_to
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import EVENTS, NODES, SERVICES, Event, ObjectReference

CONTROLLER = "zonewise.dev/controller"


@asynccontextmanager
async def recording(client: Client, **options: Any) -> AsyncIterator[Recorder]:
    options.setdefault("repeat_seconds", 0.2)
    options.setdefault("drain_seconds", 30.0)
    async with Recorder(client, CONTROLLER, "test-instance", **options) as recorder:
        yield recorder


@pytest.fixture
async def web(client: Client, namespace: str) -> ObjectReference:
    body = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}
    return reference_to(SERVICES, await client.create(SERVICES, body, namespace))


async def stored(client: Client, regarding: ObjectReference) -> list[Event]:
    events = (await client.list(EVENTS, regarding.namespace or "default")).items
    return [event for event in events if event.regarding.uid == regarding.uid]


def kubectl(cluster: ControlPlane, *arguments: str) -> str:
    command = [str(cluster.binaries / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def outcomes(name: str) -> float:
    return REGISTRY.get_sample_value("zonewise_events_total", {"outcome": name}) or 0.0


async def test_event_has_all_its_fields(client: Client, web: ObjectReference) -> None:
    async with recording(client) as recorder:
        recorder.record(web, Severity.WARNING, "Unbalanced", "zone a is overloaded", action="Allocate")
    (event,) = await stored(client, web)
    assert event.type == "Warning"
    assert event.reason == "Unbalanced"
    assert event.action == "Allocate"
    assert event.note == "zone a is overloaded"
    assert event.regarding == web
    assert event.reporting_controller == CONTROLLER
    assert event.reporting_instance == "test-instance"
    assert event.series is None
    assert event.metadata.name.startswith("web.")


async def test_repeats_raise_the_count_of_one_event(client: Client, web: ObjectReference) -> None:
    async with recording(client) as recorder:
        recorder.record(web, Severity.WARNING, "Unbalanced", "zone a is overloaded")
        await eventually(lambda: stored(client, web))
        for _ in range(7):
            recorder.record(web, Severity.WARNING, "Unbalanced", "zone a is overloaded")

        async def counted() -> bool:
            (event,) = await stored(client, web)
            return event.series is not None and event.series.count == 8

        await eventually(counted)
        recorder.record(web, Severity.WARNING, "Unbalanced", "zone a is overloaded")
    (event,) = await stored(client, web)
    assert event.series is not None
    assert event.series.count == 9, "the last count is written before shutdown"
    assert event.event_time is not None
    assert event.series.last_observed_time is not None
    assert event.event_time < event.series.last_observed_time


async def test_kubectl_get_describe_and_events_show_the_events(
    cluster: ControlPlane, client: Client, web: ObjectReference
) -> None:
    async with recording(client) as recorder:
        recorder.record(web, Severity.NORMAL, "HintsSet", "all 3 zones have their own endpoints")
        for _ in range(3):
            recorder.record(web, Severity.WARNING, "Unbalanced", "zone a is overloaded")
    listed = await asyncio.to_thread(kubectl, cluster, "-n", web.namespace, "get", "events", "-o", "wide")
    unbalanced = next(line for line in listed.splitlines() if "Unbalanced" in line)
    assert re.match(
        r"\d+s +Warning +Unbalanced +service/web +zonewise.dev/controller, test-instance +zone a is overloaded +\d+s +3 ",
        unbalanced,
    ), unbalanced
    described = await asyncio.to_thread(kubectl, cluster, "-n", web.namespace, "describe", "service", "web")
    assert re.search(
        r"Warning +Unbalanced +\S+ \(x3 over \S+\) +zonewise.dev/controller +zone a is overloaded", described
    ), described
    assert re.search(r"Normal +HintsSet +\S+ +zonewise.dev/controller +all 3 zones have", described), described
    shown = await asyncio.to_thread(kubectl, cluster, "-n", web.namespace, "events", "--for", "service/web")
    assert re.search(r"\(x3 over \S+\) +Warning +Unbalanced +Service/web +zone a is overloaded", shown), shown


async def test_many_similar_events_are_combined(client: Client, web: ObjectReference) -> None:
    async with recording(client, limits=EventLimits(notes=3)) as recorder:
        for number in range(20):
            recorder.record(web, Severity.WARNING, "EvictionDenied", f"pod web-{number} must stay")
    events = {event.note: event for event in await stored(client, web)}
    assert set(events) == {
        *(f"pod web-{number} must stay" for number in range(3)),
        "(combined from similar events): pod web-3 must stay",
    }
    combined = events["(combined from similar events): pod web-3 must stay"].series
    assert combined is not None
    assert combined.count == 17


async def test_events_per_object_are_limited_to_the_burst(client: Client, web: ObjectReference) -> None:
    before = outcomes("noise")
    async with recording(client, limits=EventLimits(burst=4)) as recorder:
        for number in range(10):
            recorder.record(web, Severity.NORMAL, f"Reason{number}", "something")
    assert len(await stored(client, web)) == 4
    assert outcomes("noise") - before == 6


async def test_events_of_cluster_scoped_objects_are_shown_by_describe(cluster: ControlPlane, client: Client) -> None:
    name = f"events-{uuid.uuid4().hex[:8]}"
    node = await client.create(NODES, {"metadata": {"name": name}})
    try:
        async with recording(client) as recorder:
            recorder.record(reference_to(NODES, node), Severity.NORMAL, "ZoneKnown", "the node is in zone a")
        described = await asyncio.to_thread(kubectl, cluster, "describe", "node", name)
        assert re.search(r"Normal +ZoneKnown +\S+ +zonewise.dev/controller +the node is in zone a", described), (
            described
        )
    finally:
        await client.delete(NODES, name)


async def test_deleted_event_is_created_again(client: Client, web: ObjectReference) -> None:
    async with recording(client) as recorder:
        recorder.record(web, Severity.NORMAL, "Reason", "note")
        (old,) = await eventually(lambda: stored(client, web))
        await client.delete(EVENTS, old.metadata.name, web.namespace)
        recorder.record(web, Severity.NORMAL, "Reason", "note")
        (new,) = await eventually(lambda: stored(client, web))
    assert new.metadata.name != old.metadata.name
    assert new.series is not None
    assert new.series.count == 2


async def test_refused_event_does_not_block_other_events(client: Client, web: ObjectReference) -> None:
    nowhere = ObjectReference(kind="Service", namespace="no-such-namespace", name="x", uid="1")
    with capture_logs() as lines:
        async with recording(client) as recorder:
            recorder.record(nowhere, Severity.NORMAL, "Reason", "note")
            recorder.record(web, Severity.NORMAL, "Reason", "note")
            await eventually(lambda: stored(client, web))
    assert [line["event"] for line in lines] == ["event refused"]
    assert "no-such-namespace" in lines[0]["error"]


async def test_long_fields_are_truncated(client: Client, web: ObjectReference) -> None:
    async with recording(client) as recorder:
        recorder.record(web, Severity.NORMAL, "R" * 300, "Überlänge \ud800 " * 200, action="A" * 300)
    (event,) = await stored(client, web)
    assert len(event.note.encode()) <= 1024
    assert event.note.startswith("Überlänge")
    assert event.note.endswith("...")
    assert len(event.reason) == len(event.action) == 128


async def test_events_wait_for_an_unreachable_server(
    cluster: ControlPlane, client: Client, web: ObjectReference, tmp_path: Path
) -> None:
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        with capture_logs() as lines:
            async with Client(kubeconfig.load(path), wait_for_server=False) as proxied, recording(proxied) as recorder:
                await proxy.refuse()
                for number in range(5):
                    recorder.record(web, Severity.NORMAL, "Reason", f"note {number % 2}")
                await eventually(lambda: lines)
                assert not await stored(client, web)
                await proxy.heal()
                await eventually(lambda: stored(client, web))
    events = {event.note: event.series.count for event in await stored(client, web) if event.series}
    assert events == {"note 0": 3, "note 1": 2}
    assert [line["event"] for line in lines] == ["events wait for the server"], "logged once"


def exec_plugin_user(cluster: ControlPlane, folder: Path) -> tuple[Path, str]:
    """Kubeconfig whose exec plugin prints the file `output`, and the admin's ExecCredential for it."""
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    admin = document["users"][0]["user"]
    pair = {
        "clientCertificateData": base64.b64decode(admin["client-certificate-data"]).decode(),
        "clientKeyData": base64.b64decode(admin["client-key-data"]).decode(),
    }
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": "cat", "args": [str(folder / "output")], "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": plugin}
    (folder / "config").write_text(yaml.safe_dump(document))
    return folder / "config", json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": pair})


async def test_events_wait_while_credentials_fail(
    cluster: ControlPlane, client: Client, web: ObjectReference, tmp_path: Path
) -> None:
    path, credential = exec_plugin_user(cluster, tmp_path)
    with capture_logs() as lines:
        async with Client(kubeconfig.load(path)) as plugin_client, recording(plugin_client) as recorder:
            recorder.record(web, Severity.NORMAL, "Reason", "note")
            await eventually(lambda: lines)
            (tmp_path / "output").write_text(credential)
            await eventually(lambda: stored(client, web))
    assert [line["event"] for line in lines] == ["events wait for the server"]


async def test_event_with_a_lost_response_is_not_duplicated(
    cluster: ControlPlane, client: Client, web: ObjectReference, tmp_path: Path
) -> None:
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as proxied, recording(proxied) as recorder:
            await proxied.version()
            proxy.reset_after(1)
            recorder.record(web, Severity.NORMAL, "Reason", "note")
            await eventually(lambda: stored(client, web))
            recorder.record(web, Severity.NORMAL, "Reason", "note")
    (event,) = await stored(client, web)
    assert event.series is not None
    assert event.series.count == 2


async def test_shutdown_does_not_wait_for_a_silent_server(
    cluster: ControlPlane, web: ObjectReference, tmp_path: Path
) -> None:
    before = outcomes("lost")
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        with capture_logs() as lines:
            async with Client(kubeconfig.load(path)) as proxied:
                await proxied.version()
                async with recording(proxied, drain_seconds=0.5) as recorder:
                    proxy.go_silent()
                    recorder.record(web, Severity.NORMAL, "Reason", "note")
    assert outcomes("lost") - before == 1
    assert [(line["event"], line["count"]) for line in lines] == [("events lost at shutdown", 1)]


async def test_events_recorded_during_cancellation_are_written(client: Client, web: ObjectReference) -> None:
    async def work() -> None:
        async with recording(client) as recorder:
            try:
                await asyncio.Event().wait()
            finally:
                recorder.record(web, Severity.NORMAL, "Stopped", "the last word")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.note for event in await stored(client, web)] == ["the last word"]


async def test_error_in_the_with_block_is_raised_unchanged(client: Client) -> Never:
    with pytest.raises(ValueError, match="of its own"):
        async with recording(client):
            raise ValueError("of its own")
