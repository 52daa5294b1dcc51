"""Client transport: compression, HTTP proxies, server warnings, refused watches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from support.lab.whoami import whoami
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden, Unreachable
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, NODES


def changed(cluster: ControlPlane, folder: Path, cluster_fields: dict[str, Any], user_fields: dict[str, Any]) -> Path:
    """Copy of the admin's kubeconfig with some fields set."""
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["clusters"][0]["cluster"] |= cluster_fields
    document["users"][0]["user"] |= user_fields
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


class Carried:
    """Number of bytes received from the server."""

    count = 0


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, carried: Carried | None = None) -> None:
    while chunk := await reader.read(2**16):
        if carried:
            carried.count += len(chunk)
        writer.write(chunk)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def http_proxy(answer: bytes = b"200 OK") -> AsyncIterator[tuple[str, Carried]]:
    """HTTP proxy that supports CONNECT. Yields its URL."""
    carried = Carried()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b" ", 2)
        assert method == b"CONNECT"
        writer.write(b"HTTP/1.1 " + answer + b"\r\n\r\n")
        if not answer.startswith(b"200"):
            writer.close()
            return
        host, port = target.decode().split(":")
        back, forth = await asyncio.open_connection(host, port)
        await asyncio.gather(pump(reader, forth), pump(back, writer, carried))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", carried


async def test_a_proxy_is_used(cluster: ControlPlane, tmp_path: Path) -> None:
    async with http_proxy() as (url, carried):
        async with await Client.connect(changed(cluster, tmp_path, {"proxy-url": url}, {})) as client:
            assert (await whoami(client)).username == "admin"
        assert carried.count > 0


async def test_a_proxy_that_refuses_sends_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    async with (
        http_proxy(b"403 Forbidden") as (url, _),
        await Client.connect(changed(cluster, tmp_path, {"proxy-url": url}, {})) as client,
    ):
        with pytest.raises(Unreachable) as raised:
            await client.request("GET", "/version", deadline_seconds=2)
    assert not raised.value.sent


@pytest.mark.parametrize("disabled", [False, True])
async def test_large_answers_are_compressed_unless_disabled(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path, disabled: bool
) -> None:
    size = 400_000
    await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}, "data": {"a": "x" * size}}, namespace)
    async with http_proxy() as (url, carried):
        settings = {"proxy-url": url, "disable-compression": disabled}
        async with await Client.connect(changed(cluster, tmp_path, settings, {})) as refused_client:
            assert len((await refused_client.get(CONFIG_MAPS, "x", namespace)).data["a"]) == size
        assert (carried.count > size) == disabled


async def test_the_server_s_warnings_are_logged_once(client: Client, namespace: str) -> None:
    body = {"metadata": {"generateName": "x-"}, "data": {}, "colour": "blue"}
    with capture_logs() as lines:
        for _ in range(2):
            await client.create(CONFIG_MAPS, body, namespace)
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert len(warnings) == 1
    assert 'unknown field \\"colour\\"' in warnings[0]["warning"]
    assert warnings[0]["action"] == f"create of configmaps {namespace}/x-"


async def test_a_watch_may_be_forbidden(cluster: ControlPlane, tmp_path: Path) -> None:
    async with await Client.connect(changed(cluster, tmp_path, {}, {"as": "jane"})) as client:
        with pytest.raises(Forbidden, match=r'^forbidden: watch of nodes: .*User "jane" cannot watch'):
            await anext(client.watch(NODES, resource_version=""))


async def test_a_context_can_be_chosen(cluster: ControlPlane) -> None:
    async with await Client.connect(cluster.kubeconfig, "lab") as client:
        assert client.access.origin == f"context 'lab' of {cluster.kubeconfig}"
