"""State machine test of a watch cache: random writes, disconnects and compactions always end with cache equal to server.

The API server runs without its own watch cache, so that a compaction of etcd causes 410 for a disconnected watch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from support.kube.cache_state import contents, sample, until_equal
from support.kube.fault_proxy import FaultProxy
from zonewise.kube.client.client import Client
from zonewise.kube.decide import reflector
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import AlreadyExists, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import CONFIG_MAPS, NAMESPACES, ConfigMap, Key
from zonewise.objects.change import Change

R = TypeVar("R")
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
COLOURS = st.sampled_from(["red", "green", "blue"])
NAMESPACE = "default"
SELECTOR = "colour in (red, green)"


def by_colour(config_map: ConfigMap) -> list[str]:
    return [config_map.metadata.labels["colour"]]


class Environment:
    """Shared by all examples: the control plane, the proxy, and an event loop that runs during a rule."""

    def __init__(self, runner: asyncio.Runner, plane: ControlPlane, directory: Path) -> None:
        self.runner = runner
        self.plane = plane
        self.proxy = FaultProxy(plane.server)
        self.run(self.proxy.__aenter__())
        self.client = self.run(Client.connect(plane.kubeconfig))
        self.proxied = self.run(Client.connect(self.proxy.kubeconfig(plane.kubeconfig, directory)))

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return self.runner.run(coroutine)

    def close(self) -> None:
        self.run(self.proxied.close())
        self.run(self.client.close())
        self.run(self.proxy.__aexit__())


class CacheAndServer(RuleBasedStateMachine):
    env: ClassVar[Environment]

    @initialize(streams_lists=st.booleans())
    def start(self, streams_lists: bool) -> None:
        self.replayed: dict[Key, ConfigMap] = {}
        self.counter = 0
        self.env.run(self._start(streams_lists))

    async def _start(self, streams_lists: bool) -> None:
        await self.env.proxy.heal()
        await self.env.client.delete_collection(CONFIG_MAPS, NAMESPACE)
        self.caches = Caches(self.env.proxied, silence_seconds=2.0)
        self.cache: Cache[ConfigMap] = self.caches.of(CONFIG_MAPS, NAMESPACE, SELECTOR)
        self.cache._reflector._streams_lists = streams_lists
        self.cache.add_index("colour", by_colour)
        self.cache.on_change(self.replay)
        await self.caches.__aenter__()
        await self.cache.wait_synced()

    def replay(self, change: Change[ConfigMap]) -> None:
        if change.new is None:
            del self.replayed[change.key]
        else:
            self.replayed[change.key] = change.new

    @rule(name=NAMES, colour=COLOURS)
    def create(self, name: str, colour: str) -> None:
        body = {"metadata": {"name": name, "labels": {"colour": colour}}}
        self.env.run(ignoring(AlreadyExists, self.env.client.create(CONFIG_MAPS, body, NAMESPACE)))

    @rule(name=NAMES, colour=COLOURS)
    def update(self, name: str, colour: str) -> None:
        self.counter += 1
        patch = MergePatch({"metadata": {"labels": {"colour": colour}}, "data": {"n": str(self.counter)}})
        self.env.run(ignoring(NotFound, self.env.client.patch(CONFIG_MAPS, name, patch, NAMESPACE)))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.env.run(ignoring(NotFound, self.env.client.delete(CONFIG_MAPS, name, NAMESPACE)))

    @rule()
    def compact(self) -> None:
        """Compact after a write outside the selection, which a disconnected watch has not received."""
        marker = MergePatch({"metadata": {"annotations": {"n": str(time.monotonic_ns())}}})
        self.env.run(self.env.client.patch(NAMESPACES, NAMESPACE, marker))
        self.env.plane.compact()

    @rule(after=st.one_of(st.none(), st.integers(0, 3000)))
    def disconnect(self, after: int | None) -> None:
        if after is None:
            self.env.proxy.reset()
        else:
            self.env.proxy.reset_after(after)

    @rule()
    def go_silent(self) -> None:
        self.env.proxy.go_silent()

    @rule()
    def refuse(self) -> None:
        self.env.run(self.env.proxy.refuse())

    @rule()
    def heal(self) -> None:
        self.env.run(self.env.proxy.heal())

    @rule(seconds=st.floats(0, 0.3))
    def time_passes(self, seconds: float) -> None:
        self.env.run(asyncio.sleep(seconds))

    @rule()
    def settle(self) -> None:
        self.env.run(self._settle())

    async def _settle(self) -> None:
        await self.env.proxy.heal()
        await until_equal(self.cache, self.env.client, CONFIG_MAPS, NAMESPACE, selector=SELECTOR)
        cached = contents(self.cache)
        assert self.replayed == cached
        for colour in ("red", "green", "blue"):
            indexed = {
                Key(NAMESPACE, config_map.metadata.name): config_map
                for config_map in self.cache.by_index("colour", colour)
            }
            assert indexed == {
                key: config_map for key, config_map in cached.items() if config_map.metadata.labels["colour"] == colour
            }

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.env.run(self._end())

    async def _end(self) -> None:
        try:
            await self._settle()
        finally:
            await self.caches.__aexit__(None, None, None)


async def ignoring(expected: type[Exception], coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        await coroutine
    except expected:
        return


@pytest.fixture
def env(private_cluster: Callable[..., ControlPlane], tmp_path: Path) -> Iterator[Environment]:
    plane = private_cluster(flags={Program.APISERVER: ("--watch-cache=false",)})
    with asyncio.Runner() as runner:
        env = Environment(runner, plane, tmp_path)
        yield env
        env.close()


def test_cache_and_server_end_equal(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "LONGEST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(reflector, "PAGE_SIZE", 2)
    monkeypatch.setattr(CacheAndServer, "env", env, raising=False)
    bounded = settings(
        max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    run_state_machine_as_test(CacheAndServer, settings=bounded)
    cache = Caches(env.client).of(CONFIG_MAPS, NAMESPACE, SELECTOR)
    for cause in ("gone", "unreachable"):
        assert sample("zonewise_watch_reconnects_total", cache, cause=cause) > 0
    assert sample("zonewise_watch_relists_total", cache) > 0
