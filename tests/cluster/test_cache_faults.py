"""Watch caches under control plane faults: killed, frozen, restarted, compacted, restored.

Every test ends with the cache equal to the server's contents.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.kube.cache_state import contents, sample, until_equal
from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.decide import reflector
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import CONFIG_MAPS, ConfigMap, Key
from zonewise.objects.change import Change

Start = Callable[..., ControlPlane]
NAMESPACE = "default"
NO_STREAMING_LISTS = "--feature-gates=WatchList=false"
NO_WATCH_CACHE = "--watch-cache=false"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "LONGEST_WAIT_SECONDS", 1.0)


def flags(*api_server_flags: str) -> dict[str, Any]:
    return {"flags": {Program.APISERVER: api_server_flags}}


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig) as client:
        yield client


async def put(client: Client, name: str, **data: str) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, NAMESPACE)


async def change(client: Client, name: str, **data: str) -> None:
    await client.patch(CONFIG_MAPS, name, MergePatch({"data": data}), NAMESPACE)


async def until_all_equal(cache: Cache[ConfigMap], client: Client) -> None:
    await until_equal(cache, client, CONFIG_MAPS)
    by_index = {config_map.metadata.name for config_map in cache.by_index("namespace", NAMESPACE)}
    assert by_index == {key.name for key in contents(cache) if key.namespace == NAMESPACE}


def indexed_cache(caches: Caches) -> Cache[ConfigMap]:
    cache = caches.of(CONFIG_MAPS)
    cache.add_index("namespace", _by_namespace)
    return cache


def _by_namespace(config_map: ConfigMap) -> list[str]:
    return [config_map.metadata.namespace]


def gone_and_relists(cache: Cache[ConfigMap]) -> tuple[float, float]:
    gone = sample("zonewise_watch_reconnects_total", cache, cause="gone")
    return gone, sample("zonewise_watch_relists_total", cache)


class Watcher:
    """Reads continuously: objects that stay on the server must never be missing."""

    def __init__(self, cache: Cache[ConfigMap], *steady: str) -> None:
        self.cache = cache
        self.steady = [Key(NAMESPACE, name) for name in steady]
        self.reads = 0
        self.gaps = 0

    async def run(self) -> None:
        while True:
            self.reads += 1
            self.gaps += any(key not in self.cache for key in self.steady)
            self.gaps += len(self.cache.by_index("namespace", NAMESPACE)) < len(self.steady)
            await asyncio.sleep(0.001)


async def test_cache_recovers_from_killed_and_frozen_control_plane(private_cluster: Start) -> None:
    plane = await asyncio.to_thread(private_cluster)
    async with connected(plane.kubeconfig) as client, Caches(client, silence_seconds=5.0) as caches:
        cache = indexed_cache(caches)
        await put(client, "steady", a="1")
        await until_all_equal(cache, client)

        await asyncio.to_thread(plane.kill, Program.APISERVER)
        await eventually(lambda: cache.problem != "")
        assert Key(NAMESPACE, "steady") in cache
        await asyncio.to_thread(plane.spawn, Program.APISERVER)
        await asyncio.to_thread(plane.wait_ready)
        await put(client, "after-the-api-server-was-killed")
        await until_all_equal(cache, client)

        plane.pause(Program.ETCD)
        await eventually(lambda: sample("zonewise_watch_staleness_seconds", cache) > 3)
        assert Key(NAMESPACE, "steady") in cache
        plane.resume(Program.ETCD)
        await asyncio.to_thread(plane.wait_ready)
        await change(client, "steady", a="2")
        await until_all_equal(cache, client)

        await asyncio.to_thread(plane.restart, Program.ETCD, kill=True)
        await put(client, "after-etcd-was-killed")
        await until_all_equal(cache, client)


async def test_410_relists_without_a_gap(private_cluster: Start, tmp_path: Path) -> None:
    """One streaming relist; readers see no gap and handlers get exactly the difference."""
    plane = await asyncio.to_thread(private_cluster)
    changes: list[Change[ConfigMap]] = []
    async with (
        FaultProxy(plane.server) as proxy,
        connected(plane.kubeconfig) as client,
        connected(proxy.kubeconfig(plane.kubeconfig, tmp_path)) as proxied,
        Caches(proxied) as caches,
    ):
        for name in ("kept", "changed", "removed", "reborn"):
            await put(client, name, a="1")
        cache = indexed_cache(caches)
        await until_all_equal(cache, client)
        cache.on_change(changes.append)
        changes.clear()
        before = gone_and_relists(cache)
        watcher = Watcher(cache, "kept", "changed", "reborn")
        watching = asyncio.create_task(watcher.run())

        await proxy.refuse()
        await change(client, "changed", a="2")
        await client.delete(CONFIG_MAPS, "removed", NAMESPACE)
        await client.delete(CONFIG_MAPS, "reborn", NAMESPACE)
        await put(client, "reborn", a="2")
        await put(client, "new", a="1")
        await asyncio.to_thread(plane.forget_history)
        await put(client, "newer")
        await proxy.heal()
        await until_all_equal(cache, client)
        watching.cancel()

        assert gone_and_relists(cache) == (before[0] + 1, before[1] + 1)
    assert watcher.gaps == 0
    assert watcher.reads > 100
    received = {
        (change.key.name, change.old and change.old.data["a"], change.new and change.new.data.get("a"))
        for change in changes
    }
    assert received == {
        ("changed", "1", "2"),
        ("removed", "1", None),
        ("reborn", "1", None),
        ("reborn", None, "2"),
        ("new", None, "1"),
        ("newer", None, None),
    }
    assert len(changes) == len(received)


async def test_expired_list_pages_fall_back_to_an_unpaged_list(
    private_cluster: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compactions are faster than pages, so the list is read in one response."""
    monkeypatch.setattr(reflector, "PAGE_SIZE", 2)
    plane = await asyncio.to_thread(private_cluster, **flags(NO_STREAMING_LISTS, NO_WATCH_CACHE))
    async with (
        FaultProxy(plane.server) as proxy,
        connected(plane.kubeconfig) as client,
        connected(proxy.kubeconfig(plane.kubeconfig, tmp_path)) as proxied,
        Caches(proxied) as caches,
    ):
        for number in range(20):
            await put(client, f"steady-{number}")
        proxy.delay(0.2)
        cache = indexed_cache(caches)
        gone, _ = gone_and_relists(cache)
        compacting = asyncio.create_task(write_and_compact_forever(plane, client))
        await cache.wait_synced()
        compacting.cancel()
        await proxy.heal()
        await until_all_equal(cache, client)
        assert not cache._reflector._streams_lists
        assert gone_and_relists(cache)[0] > gone
        relists = gone_and_relists(cache)[1]

        await proxy.refuse()
        await change(client, "steady-0", a="2")
        await asyncio.to_thread(plane.compact)
        await change(client, "steady-1", a="2")
        await proxy.heal()
        await until_all_equal(cache, client)
        assert gone_and_relists(cache)[1] > relists
        assert sample("zonewise_watch_reconnects_total", cache, cause="invalid") == 1


async def write_and_compact_forever(plane: ControlPlane, client: Client) -> None:
    number = 0
    while True:
        await change(client, "steady-0", number=str(number))
        await asyncio.to_thread(plane.compact)
        await asyncio.sleep(0.1)
        number += 1


async def test_restored_etcd_with_lower_versions_is_relisted(
    private_cluster: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when etcd is restored from a backup: the server's version is below the cache's."""
    monkeypatch.setattr(reflector, "BOOKMARKS_DUE_SECONDS", 2.0)
    plane = await asyncio.to_thread(private_cluster)
    async with connected(plane.kubeconfig) as client, Caches(client, silence_seconds=3.0) as caches:
        cache = indexed_cache(caches)
        await put(client, "lost")
        for number in range(200):
            await change(client, "lost", number=str(number))
        await until_all_equal(cache, client)
        for program in (Program.APISERVER, Program.ETCD):
            await asyncio.to_thread(plane.kill, program)
        await asyncio.to_thread(erase_etcd, plane.layout.data)
        for program in (Program.ETCD, Program.APISERVER):
            await asyncio.to_thread(plane.spawn, program)
        await asyncio.to_thread(plane.wait_ready)
        await put(client, "found")
        await until_all_equal(cache, client)
        assert Key(NAMESPACE, "lost") not in cache


def erase_etcd(etcd_data: Path) -> None:
    shutil.rmtree(etcd_data)
    etcd_data.mkdir(mode=0o700)
