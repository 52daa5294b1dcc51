"""What we wrote is read before the watch tells it, wakes nobody when it does, and is believed no longer than that."""

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


class Site:
    def __init__(self) -> None:
        self.heard = 0
        self.written = EndpointSliceTracker(lambda: str(self.heard))

    def reads(self, *cached: EndpointSlice) -> list[tuple[str, str]]:
        merged = self.written.merge(SERVICE, cached)
        return sorted((seen.metadata.name, seen.metadata.resource_version) for seen in merged)


def test_a_created_slice_is_read_until_the_watch_has_passed_it() -> None:
    site = Site()
    site.written.wrote(SERVICE, make("a", 5))
    assert site.reads() == [("a", "5")]
    site.heard = 5
    assert site.reads() == []  # the watch told everything up to then: somebody deleted it
    site.heard = 0
    assert site.reads() == []


def test_an_updated_slice_is_read_as_written() -> None:
    site = Site()
    site.written.wrote(SERVICE, make("a", 5))
    assert site.reads(make("a", 3), make("b", 2)) == [("a", "5"), ("b", "2")]


def test_a_deleted_slice_is_not_read_but_its_successor_is() -> None:
    site = Site()
    site.written.deleted(SERVICE, make("a", 3))
    assert site.reads(make("a", 3), make("b", 2)) == [("b", "2")]
    assert site.reads(make("a", 9, uid="another")) == [("a", "9")]


def test_the_echo_of_a_write_wakes_nobody_and_what_follows_it_does() -> None:
    site = Site()
    site.written.wrote(SERVICE, make("a", 5))
    assert site.written.is_echo(changed(make("a", 3)))
    assert site.written.is_echo(changed(make("a", 5)))
    assert not site.written.is_echo(changed(make("a", 6)))


def test_a_foreign_write_over_ours_is_no_echo() -> None:
    site = Site()
    site.written.wrote(SERVICE, make("a", 5))
    assert not site.written.is_echo(changed(make("a", 7)))


def test_the_echo_of_a_deletion_wakes_nobody_and_a_foreign_deletion_does() -> None:
    site = Site()
    site.written.deleted(SERVICE, make("a", 3))
    assert site.written.is_echo(changed(make("a", 3)))  # of an update before it
    assert site.written.is_echo(removed(make("a", 3)))
    assert not site.written.is_echo(removed(make("b", 3)))


def test_an_echo_that_overtakes_its_answer_is_known_at_the_end() -> None:
    site = Site()
    site.written.begin(SERVICE)
    assert site.written.is_echo(changed(make("new", 5)))
    site.written.wrote(SERVICE, make("new", 5))
    assert not site.written.end(SERVICE)
    site.heard = 5
    assert site.reads(make("new", 5)) == [("new", "5")]


def test_a_foreign_change_during_a_write_is_told_at_its_end() -> None:
    site = Site()
    site.written.begin(SERVICE)
    assert site.written.is_echo(changed(make("a", 4)))
    site.written.wrote(SERVICE, make("new", 5))
    assert site.written.end(SERVICE)
