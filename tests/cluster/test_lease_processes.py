"""Two real processes and one lease: what the server sees them write when one is stopped, and when one ends."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.process import Program
from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, LEASES, Resource


@dataclass
class History:
    """Every change of the lease and of what its leader writes, in the order the server stored them."""

    holders: dict[int, str] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)

    @property
    def holder(self) -> str:
        return self.holders[max(self.holders)] if self.holders else ""

    def writes_of(self, writer: str) -> int:
        return list(self.writers.values()).count(writer)

    def intrusions(self) -> list[str]:
        """Writes stored while their writer did not hold the lease; resource versions order changes of all kinds."""
        found, holder = [], ""
        for version in sorted(self.holders | self.writers):
            holder = self.holders.get(version, holder)
            if version in self.writers and self.writers[version] != holder:
                found.append(
                    f"version {version}: {self.writers[version]} wrote while {holder or 'nobody'} held the lease"
                )
        return found


@asynccontextmanager
async def recorded(client: Client, namespace: str) -> AsyncIterator[History]:
    history = History()
    begin = (await client.list(CONFIG_MAPS, namespace)).resource_version

    async def follow(resource: Resource[Any], note: Callable[[int, dict[str, Any]], None]) -> None:
        async for event in client.watch(resource.whole(), namespace, resource_version=begin):
            if event.type in {"ADDED", "MODIFIED"}:
                note(int(event.object["metadata"]["resourceVersion"]), event.object)

    def note_lease(version: int, lease: dict[str, Any]) -> None:
        history.holders[version] = lease["spec"].get("holderIdentity", "")

    def note_write(version: int, written: dict[str, Any]) -> None:
        if writer := (written.get("data") or {}).get("writer"):
            history.writers[version] = writer

    followers = [
        asyncio.create_task(follow(LEASES, note_lease)),
        asyncio.create_task(follow(CONFIG_MAPS, note_write)),
    ]
    yield history
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


@pytest.fixture
def start(cluster: ControlPlane, namespace: str) -> Iterator[Callable[[str], Program]]:
    started: list[Program] = []

    def start_one(identity: str) -> Program:
        started.append(Program("candidate.py", cluster.kubeconfig, namespace, identity))
        return started[-1]

    yield start_one
    for program in started:
        program.remove()


@pytest.fixture
async def history(client: Client, namespace: str) -> AsyncIterator[History]:
    await client.create(CONFIG_MAPS, {"metadata": {"name": "written"}}, namespace)
    async with recorded(client, namespace) as history:
        yield history


async def test_a_process_stopped_past_its_lease_does_not_write_later(
    history: History, start: Callable[[str], Program]
) -> None:
    programs = {identity: start(identity) for identity in ("a", "b")}
    for _ in range(3):
        leader = await eventually(lambda: history.holder)
        other = "b" if leader == "a" else "a"
        await eventually(lambda leader=leader: history.writes_of(leader) > 5)
        losses = programs[leader].events.count("leadership lost")
        written = history.writes_of(other)
        programs[leader].signal(signal.SIGSTOP)
        await eventually(lambda other=other, written=written: history.writes_of(other) > written + 5)
        programs[leader].signal(signal.SIGCONT)
        await eventually(lambda leader=leader, losses=losses: programs[leader].events.count("leadership lost") > losses)
        written = history.writes_of(other)
        await eventually(lambda other=other, written=written: history.writes_of(other) > written + 5)
    for program in programs.values():
        program.signal(signal.SIGTERM)
    for program in programs.values():
        assert await asyncio.to_thread(program.end) == 0
    await eventually(lambda: history.holder == "")
    assert history.intrusions() == []


async def test_a_signal_ends_a_leader_cleanly_and_the_other_takes_over_at_once(
    client: Client, namespace: str, history: History, start: Callable[[str], Program]
) -> None:
    first = start("a")
    await eventually(lambda: history.writes_of("a"))
    second = start("b")
    await asyncio.to_thread(second.line, "another process leads")
    first.signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.end) == 0
    assert first.events[:2] == ["process started", "leadership gained"]
    assert first.events[-3:] == ["process stopping", "leadership released", "process ended"]
    await eventually(lambda: history.writes_of("b"))
    assert "" in history.holders.values(), "released, not waited out"
    second.signal(signal.SIGINT)
    assert await asyncio.to_thread(second.end) == 0
    assert not (await client.get(LEASES, "x", namespace)).spec.holder_identity
    assert history.intrusions() == []
