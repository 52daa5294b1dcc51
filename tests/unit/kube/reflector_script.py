"""Helpers for reflector tests: objects and events in one line each, and a driver for the state machine."""

from __future__ import annotations

from zonewise.kube.decide.reflector import PAGE_SIZE, Command, List, Reflector, Wait, Watch
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.kube.wire.errors import ApiError, ErrorCause, ErrorDetails, Gone, Invalid, ServerTimeout, Unreachable
from zonewise.objects import ConfigMap, Key, Metadata
from zonewise.objects.change import Change

GONE = Gone("too old resource version", status=410)
RESET = Unreachable("connection reset")
TOO_LARGE = ServerTimeout(
    "Too large resource version: 12, current: 3",
    status=504,
    details=ErrorDetails(causes=(ErrorCause(reason="ResourceVersionTooLarge"),), retry_after_seconds=1),
)


def config(name: str, version: int, uid: str = "") -> ConfigMap:
    return ConfigMap(metadata=Metadata(name=name, namespace="n", uid=uid or name, resource_version=str(version)))


def key(name: str) -> Key:
    return Key("n", name)


def event(kind: EventType, config_map: ConfigMap) -> WatchEvent[ConfigMap]:
    return WatchEvent(kind, config_map)


def added(name: str, version: int) -> WatchEvent[ConfigMap]:
    return event(EventType.ADDED, config(name, version))


def bookmark(version: int, *, ends_list: bool = False) -> WatchEvent[ConfigMap]:
    config_map = ConfigMap(metadata=Metadata(resource_version=str(version)))
    return WatchEvent(EventType.BOOKMARK, config_map, ends_list)


class Play:
    """Drives a reflector with its own clock and without jitter (all waits are the shortest)."""

    def __init__(self) -> None:
        self.reflector: Reflector[ConfigMap] = Reflector()
        self.now = 1000.0

    def next(self) -> Command:
        return self.reflector.next(self.now, 0.0)

    def next_request(self) -> Command:
        command = self.next()
        while isinstance(command, Wait):
            self.now += command.seconds
            command = self.next()
        return command

    def watched(self, *events: WatchEvent[ConfigMap]) -> list[Change[ConfigMap]]:
        return [change for event in events for change in self.reflector.watched(event, self.now)]

    def failed(self, error: ApiError) -> None:
        self.reflector.failed(error, self.now, 0.0)

    def closed(self, after: float = 5.0) -> None:
        self.now += after
        self.reflector.closed(self.now, 0.0)

    def names(self) -> set[str]:
        return {key.name for key in self.reflector.objects}

    def synced_by_stream(self, *names: str, version: int = 10) -> Play:
        assert isinstance(self.next_request(), Watch)
        self.watched(*(added(name, version) for name in names), bookmark(version, ends_list=True))
        return self

    def synced_by_pages(self, *names: str, version: int = 10) -> Play:
        self.next_request()
        self.failed(Invalid("sendInitialEvents is forbidden", status=422))
        assert self.next() == List("", PAGE_SIZE)
        self.reflector.page([config(name, version) for name in names], self.now)
        self.reflector.listed(str(version))
        return self


def resumed(version: int) -> Watch:
    return Watch(str(version), initial_events=False, timeout_seconds=300)


def streamed(version: str) -> Watch:
    return Watch(version, initial_events=True, timeout_seconds=300)
