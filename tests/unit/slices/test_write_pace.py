"""How soon a Service is looked at again: at once, but never in a race with somebody who undoes what we do."""

from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import Access
from zonewise.objects import Key
from zonewise.slices.controller import Settings, SliceController
from zonewise.slices.decide.plan import SlicesPlan
from zonewise.slices.informers import Cause

SERVICE = Key("default", "web")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def controller_at(clock: Clock, settings: Settings) -> SliceController:
    client = Client(Access(server="http://127.0.0.1:1"))
    return SliceController(client, Caches(client), Recorder(client, "test", "test"), settings, clock=clock)


async def test_what_others_do_is_undone_at_once_and_then_once_a_second() -> None:
    clock = Clock()
    controller = await controller_at(clock, Settings())
    for _ in range(100):  # told of by a watch, not reacted to: as where another replica leads
        assert controller._seconds_until_repair(SERVICE) == 0
    await controller._write(SERVICE, SlicesPlan())
    clock.now += 0.25
    assert controller._seconds_until_repair(SERVICE) == 0.75
    clock.now += 1
    assert controller._seconds_until_repair(SERVICE) == 0


async def test_pods_wait_for_company_only_if_asked() -> None:
    at_once = await controller_at(Clock(), Settings())
    at_once._enqueue(SERVICE, Cause.PODS)
    assert len(at_once._queue) == 1
    batching = await controller_at(Clock(), Settings(batch_seconds=60))
    batching._enqueue(SERVICE, Cause.PODS)
    assert len(batching._queue) == 0
    batching._enqueue(SERVICE, Cause.SERVICE)
    assert len(batching._queue) == 1
