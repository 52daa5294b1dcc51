"""The tracker of slice writes: pending writes are merged, their echoes recognised, and both expire with the watch."""

from zonewise.objects import SERVICE_NAME, EndpointSlice, Key, Metadata, key_of
from zonewise.objects.change import Change
from zonewise.slices.decide.tracker import EndpointSliceTracker

SERVICE = Key("default", "web")


def make(name: str, version: int, uid: str = "") -> EndpointSlice:
    labels = {SERVICE_NAME: SERVICE.name}
    metadata = Metadata(
        name=name, namespace=SERVICE.namespace, uid=uid or f"uid-{name}", resource_version=str(version), labels=labels
    )
    return EndpointSlice(metadata=metadata)


def changed(new: EndpointSlice, old: EndpointSlice | None = None) -> Change[EndpointSlice]:
    return Change(key_of(new), old, new)


def removed(old: EndpointSlice) -> Change[EndpointSlice]:
    return Change(key_of(old), old, None)


class TrackedService:
    def __init__(self) -> None:
        self.watched = 0
        self.tracker = EndpointSliceTracker(lambda: str(self.watched))

    def reads(self, *cached: EndpointSlice) -> list[tuple[str, str]]:
        merged = self.tracker.merge(SERVICE, cached)
        return sorted(
            (endpoint_slice.metadata.name, endpoint_slice.metadata.resource_version) for endpoint_slice in merged
        )


def test_created_slice_is_merged_until_the_watch_passes_it() -> None:
    service = TrackedService()
    service.tracker.wrote(SERVICE, make("a", 5))
    assert service.reads() == [("a", "5")]
    service.watched = 5
    assert service.reads() == []  # the watch has passed that version: the slice was deleted
    service.watched = 0
    assert service.reads() == []


def test_updated_slice_is_merged() -> None:
    service = TrackedService()
    service.tracker.wrote(SERVICE, make("a", 5))
    assert service.reads(make("a", 3), make("b", 2)) == [("a", "5"), ("b", "2")]


def test_deleted_slice_is_left_out_but_a_new_one_is_not() -> None:
    service = TrackedService()
    service.tracker.deleted(SERVICE, make("a", 3))
    assert service.reads(make("a", 3), make("b", 2)) == [("b", "2")]
    assert service.reads(make("a", 9, uid="another")) == [("a", "9")]


def test_echo_of_a_write_is_recognised() -> None:
    service = TrackedService()
    service.tracker.wrote(SERVICE, make("a", 5))
    assert service.tracker.is_echo(changed(make("a", 3)))
    assert service.tracker.is_echo(changed(make("a", 5)))
    assert not service.tracker.is_echo(changed(make("a", 6)))


def test_write_of_another_writer_is_no_echo() -> None:
    service = TrackedService()
    service.tracker.wrote(SERVICE, make("a", 5))
    assert not service.tracker.is_echo(changed(make("a", 7)))


def test_echo_of_a_deletion_is_recognised() -> None:
    service = TrackedService()
    service.tracker.deleted(SERVICE, make("a", 3))
    assert service.tracker.is_echo(changed(make("a", 3)))  # an update before it
    assert service.tracker.is_echo(removed(make("a", 3)))
    assert not service.tracker.is_echo(removed(make("b", 3)))


def test_echo_before_the_response_is_recognised_at_the_end() -> None:
    service = TrackedService()
    service.tracker.begin(SERVICE)
    assert service.tracker.is_echo(changed(make("new", 5)))
    service.tracker.wrote(SERVICE, make("new", 5))
    assert not service.tracker.end(SERVICE)
    service.watched = 5
    assert service.reads(make("new", 5)) == [("new", "5")]


def test_foreign_change_during_a_write_is_reported_at_the_end() -> None:
    service = TrackedService()
    service.tracker.begin(SERVICE)
    assert service.tracker.is_echo(changed(make("a", 4)))
    service.tracker.wrote(SERVICE, make("new", 5))
    assert service.tracker.end(SERVICE)
