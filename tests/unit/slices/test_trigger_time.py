from zonewise.objects import Condition, Key, Metadata, Pod, PodStatus, Service
from zonewise.slices.decide.trigger_time import TriggerTimeTracker

SERVICE = Key("default", "web")


def at(second: int) -> str:
    return f"2026-11-16T10:00:{second:02}Z"


def service(created: int = 1) -> Service:
    return Service(metadata=Metadata(name="web", namespace="default", creation_timestamp=at(created)))


def pod(name: str, ready_since: int) -> Pod:
    ready = Condition(type="Ready", status="True", last_transition_time=at(ready_since))
    return Pod(metadata=Metadata(name=name, namespace="default"), status=PodStatus(conditions=(ready,)))


def test_first_sync_gives_the_creation_time() -> None:
    assert TriggerTimeTracker().since(service(), [pod("a", 5)]) == at(1)


def test_later_syncs_give_the_earliest_change() -> None:
    times = TriggerTimeTracker()
    times.since(service(), [pod("a", 5), pod("b", 5)])
    times.mark_written(SERVICE)
    assert times.since(service(), [pod("a", 5), pod("b", 9), pod("c", 7)]) == at(7)
    times.mark_written(SERVICE)
    assert times.since(service(), [pod("a", 5), pod("c", 7)]) is None


def test_unwritten_time_is_kept_for_the_next_sync() -> None:
    times = TriggerTimeTracker()
    times.since(service(), [pod("a", 5)])
    times.mark_written(SERVICE)
    assert times.since(service(), [pod("a", 7)]) == at(7)
    assert times.since(service(), [pod("a", 9)]) == at(7)


def test_recreated_and_forgotten_services() -> None:
    times = TriggerTimeTracker()
    times.since(service(), [])
    times.mark_written(SERVICE)
    assert times.since(service(8), [pod("a", 9)]) == at(8)
    times.forget(SERVICE)
    assert times.since(service(8), [pod("a", 9)]) == at(8)
