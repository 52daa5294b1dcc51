"""Reflector against a model of an API server with history, lagging replicas, compactions and faults.

Whatever happens, what readers see is the whole state of the server at the resource version that the machine claims, and
that version never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from zonewise.kube.decide.reflector import List, Reflector, Wait, Watch
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.kube.wire.errors import ApiError, ErrorCause, ErrorDetails, Gone, Invalid, ServerTimeout, Unreachable
from zonewise.objects import ConfigMap, Key, Metadata, key_of
from zonewise.objects.change import Change

NAMES = st.sampled_from("abcde")
State = dict[Key, ConfigMap]


def bookmark(version: int, *, ends_list: bool = False) -> WatchEvent[ConfigMap]:
    viewed = ConfigMap(metadata=Metadata(resource_version=str(version)))
    return WatchEvent(EventType.BOOKMARK, viewed, ends_list)


class ModelServer:
    """`history[i]` is the event that made version i + 1."""

    def __init__(self, *, streams_lists: bool) -> None:
        self.streams_lists = streams_lists
        self.history: list[WatchEvent[ConfigMap]] = []
        self.compacted = 0
        self.lag = 0

    @property
    def version(self) -> int:
        return len(self.history)

    def put(self, name: str) -> None:
        old = self.state_at(self.version).get(Key("n", name))
        uid = old.metadata.uid if old else f"{name}-{self.version}"
        self._record(EventType.MODIFIED if old else EventType.ADDED, name, uid)

    def delete(self, name: str) -> None:
        old = self.state_at(self.version).get(Key("n", name))
        if old:
            self._record(EventType.DELETED, name, old.metadata.uid)

    def _record(self, kind: EventType, name: str, uid: str) -> None:
        metadata = Metadata(name=name, namespace="n", uid=uid, resource_version=str(self.version + 1))
        self.history.append(WatchEvent(kind, ConfigMap(metadata=metadata)))

    def state_at(self, version: int) -> State:
        state: State = {}
        for event in self.history[:version]:
            if event.type is EventType.DELETED:
                del state[key_of(event.object)]
            else:
                state[key_of(event.object)] = event.object
        return state

    def list_version(self, not_older_than: str) -> int:
        """A consistent read is current; other reads are from a lagging replica, which may be too old."""
        version = self.version if not not_older_than else max(0, self.version - self.lag)
        if not_older_than and version < int(not_older_than):
            too_large = ErrorDetails(causes=(ErrorCause(reason="ResourceVersionTooLarge"),))
            raise ServerTimeout("Too large resource version", status=504, details=too_large)
        return version

    def list(self, request: List) -> Iterator[list[ConfigMap] | int]:
        """Pages of two items, then the list's version."""
        version = self.list_version(request.resource_version)
        items = list(self.state_at(version).values())
        size = 2 if request.page_size else max(1, len(items))
        for start in range(0, len(items), size):
            if start and version < self.compacted:
                raise Gone("the continue parameter is too old", status=410)
            yield items[start : start + size]
        yield version

    def watch(self, request: Watch) -> Iterator[WatchEvent[ConfigMap] | None]:
        """`None` while there is no event."""
        version = int(request.resource_version or 0)
        if request.initial_events:
            if not self.streams_lists:
                raise Invalid("sendInitialEvents is forbidden", status=422)
            version = self.list_version(request.resource_version)
            for viewed in self.state_at(version).values():
                yield WatchEvent(EventType.ADDED, viewed)
            yield bookmark(version, ends_list=True)
        while True:
            if version < self.compacted:
                raise Gone("too old resource version", status=410)
            if version < self.version:
                yield self.history[version]
                version += 1
            else:
                yield None
                if version == self.version:
                    yield bookmark(version)


class ListWatch(RuleBasedStateMachine):
    @initialize(streams_lists=st.booleans())
    def start(self, streams_lists: bool) -> None:
        self.server = ModelServer(streams_lists=streams_lists)
        self.reflector: Reflector[ConfigMap] = Reflector()
        self.now = 0.0
        self.replayed: State = {}
        self.newest = 0
        self.responses: Iterator[object] | None = None

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        self.server.put(name)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.server.delete(name)

    @rule()
    def compact(self) -> None:
        self.server.compacted = self.server.version

    @rule(lag=st.integers(0, 5))
    def lag(self, lag: int) -> None:
        self.server.lag = lag

    @rule(seconds=st.floats(0.01, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(chance=st.floats(0, 0.999))
    def connection_lost(self, chance: float) -> None:
        if self.responses is not None:
            self.end(Unreachable("reset"), chance)

    @rule(chance=st.floats(0, 0.999))
    def server_ends_the_watch(self, chance: float) -> None:
        if self.responses is not None and isinstance(self.reflector._request, Watch):
            self.end(None, chance)

    @rule(steps=st.integers(1, 8), chance=st.floats(0, 0.999))
    def advance(self, steps: int, chance: float) -> None:
        for _ in range(steps):
            self.step(chance)

    def step(self, chance: float) -> None:
        if self.responses is None:
            self.ask(chance)
            return
        try:
            self.feed(next(self.responses))
        except ApiError as error:
            self.end(error, chance)

    def ask(self, chance: float) -> None:
        match self.reflector.next(self.now, chance):
            case Wait(seconds):
                assert 0 < seconds < 61
                self.now += seconds
            case List() as request:
                self.responses = self.server.list(request)
            case Watch() as request:
                self.responses = self.server.watch(request)

    def feed(self, response: object) -> None:
        match response:
            case WatchEvent():
                self.replay(self.reflector.watched(response, self.now))
            case list():
                self.reflector.page(response, self.now)
            case int():
                self.replay(self.reflector.listed(str(response)))
                self.responses = None

    def end(self, error: ApiError | None, chance: float) -> None:
        self.responses = None
        if error is None:
            self.reflector.closed(self.now, chance)
        else:
            self.reflector.failed(error, self.now, chance)

    def replay(self, changes: Iterable[object]) -> None:
        for change in changes:
            assert isinstance(change, Change)
            assert self.replayed.get(change.key) == change.old
            assert change.old != change.new
            if change.new is None:
                del self.replayed[change.key]
            else:
                self.replayed[change.key] = change.new

    @invariant()
    def readers_see_the_state_of_the_claimed_version(self) -> None:
        version = int(self.reflector.resource_version or 0)
        assert self.reflector.objects == (self.server.state_at(version) if self.reflector.synced else {})

    @invariant()
    def version_never_decreases(self) -> None:
        version = int(self.reflector.resource_version or 0)
        assert version >= self.newest
        self.newest = version

    @invariant()
    def changes_replay_to_the_state(self) -> None:
        assert self.replayed == self.reflector.objects

    def teardown(self) -> None:
        """After the faults end, the reflector catches up."""
        if not hasattr(self, "server"):
            return
        self.server.lag = 0
        for _ in range(200):
            self.step(0.0)
        assert self.reflector.objects == self.server.state_at(self.server.version)
        self.changes_replay_to_the_state()


TestListWatch = ListWatch.TestCase
TestListWatch.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
