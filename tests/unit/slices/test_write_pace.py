"""Delay of syncs: immediate, but limited for repairs, so that two writers cannot race."""

from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import SyncCause
from zonewise.kube.wire.access import ClusterAccess
from zonewise.objects import Key
from zonewise.slices.controller import SliceController, SlicesConfig
from zonewise.slices.decide.plan import SlicesPlan

SERVICE = Key("default", "web")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def controller_at(clock: Clock, settings: SlicesConfig) -> SliceController:
    client = Client(ClusterAccess(server="http://127.0.0.1:1"))
    return SliceController(client, Caches(client), Recorder(client, "test", "test"), settings, clock=clock)


async def test_first_repair_is_immediate_then_one_per_second() -> None:
    clock = Clock()
    controller = await controller_at(clock, SlicesConfig())
    for _ in range(100):  # watched but not acted on, as if another replica leads
        assert controller._seconds_until_repair(SERVICE) == 0
    await controller._write(SERVICE, SlicesPlan())
    clock.now += 0.25
    assert controller._seconds_until_repair(SERVICE) == 0.75
    clock.now += 1
    assert controller._seconds_until_repair(SERVICE) == 0


async def test_pod_changes_are_batched_only_if_configured() -> None:
    immediate = await controller_at(Clock(), SlicesConfig())
    immediate._enqueue(SERVICE, SyncCause.PODS)
    assert len(immediate._queue) == 1
    batching = await controller_at(Clock(), SlicesConfig(batch_seconds=60))
    batching._enqueue(SERVICE, SyncCause.PODS)
    assert len(batching._queue) == 0
    batching._enqueue(SERVICE, SyncCause.SERVICE)
    assert len(batching._queue) == 1
