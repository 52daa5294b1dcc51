"""Manager: order of start and shutdown, and failures of parts. No server listens at the API address."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.waiting import eventually
from zonewise.kube.decide.election import NotLeader
from zonewise.kube.manager import LeaseConfig, Manager
from zonewise.kube.server.health import Health
from zonewise.kube.wire.access import ClusterAccess
from zonewise.objects import CONFIG_MAPS, NODES, PODS


def make_manager() -> Manager:
    return Manager(ClusterAccess(server="http://127.0.0.1:1"), Health())


def running_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def part(log: list[str], name: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def run() -> None:
        log.append(f"{name} starts")
        try:
            await asyncio.Event().wait()
        finally:
            log.append(f"{name} ends")

    return run


async def failing() -> None:
    raise OSError("a part failed")


async def test_shutdown_order_is_part_watches_server_events() -> None:
    manager, log = make_manager(), list[str]()
    watch = f"watch {manager.caches.of(NODES).name}"
    manager.recorder("zonewise.dev/test")

    @asynccontextmanager
    async def server() -> AsyncIterator[None]:
        assert watch not in running_tasks()
        log.append("server starts")
        try:
            yield
        finally:
            assert watch not in running_tasks()
            assert "events" in running_tasks()
            log.append("server ends")

    async def run() -> None:
        try:
            await part(log, "part")()
        finally:
            assert watch in running_tasks()

    manager.add_server(server())
    manager.add("part", run)
    task = asyncio.create_task(manager.run())
    await eventually(lambda: "part starts" in log, "the part runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["server starts", "part starts", "part ends", "server ends"]
    assert "events" not in running_tasks()


async def test_failing_part_ends_the_others() -> None:
    manager, log = make_manager(), list[str]()
    manager.add("steady", part(log, "steady"))
    manager.add("failing", failing)
    with pytest.raises(ExceptionGroup) as raised:
        await manager.run()
    assert raised.group_contains(OSError, match="a part failed")
    assert log == ["steady starts", "steady ends"]


async def test_run_returns_when_every_part_has_returned() -> None:
    manager = make_manager()
    manager.add("short", lambda: asyncio.sleep(0))
    await manager.run()


async def test_failing_leader_work_ends_the_other_leader_work() -> None:
    log = list[str]()
    with pytest.raises(ExceptionGroup) as raised:
        await make_manager().leader(None).run(part(log, "steady"), failing)
    assert raised.group_contains(OSError, match="a part failed")
    assert log == ["steady starts", "steady ends"]


async def test_writes_of_leader_work_need_the_lease() -> None:
    manager = make_manager()
    leader = manager.leader(LeaseConfig(name="test"))
    assert not leader.is_alone
    with pytest.raises(NotLeader):
        await leader.guarded(manager.client).create(CONFIG_MAPS, {"metadata": {"name": "x"}}, "default")
    alone = manager.leader(None)
    assert alone.is_alone
    assert alone.guarded(manager.client) is manager.client


async def test_part_starts_when_its_watches_are_synced() -> None:
    manager = make_manager()
    pods = manager.caches.of(PODS)
    manager.caches.of(NODES)
    starting = asyncio.create_task(manager.started((pods,)))
    await asyncio.sleep(0)
    assert not manager.health.ready().passed
    pods._reflector.listed("1")
    pods.publish([])
    await starting
    assert manager.health.ready().passed
