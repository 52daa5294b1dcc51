"""Images that are made without librbd: object for object what librbd makes, and librbd's own from then on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rados
import rbd

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.rbd_fast_create import FastImageCreator, class_calls

Name = Callable[[str], str]
ALL = 61  # layering, exclusive-lock, object-map, fast-diff, deep-flatten
MIB = 1 << 20


@pytest.fixture
def pool(ceph_admin: CephCluster, name: Name) -> Iterator[Any]:
    """One that librbd has used before."""
    handle = ceph_admin.rados
    handle.create_pool(name("pool"))
    with handle.open_ioctx(name("pool")) as io:
        rbd.RBD().pool_init(io, True)
        rbd.RBD().create(io, "first", MIB)
        rbd.RBD().remove(io, "first")
        yield io
    handle.delete_pool(name("pool"))


def _objects(io: Any, image: str) -> dict[str, tuple[dict[str, bytes], dict[str, bytes], bytes]]:
    """Of an image: what each has, with the image's own id and name replaced, and without times."""
    with rbd.Image(io, image, read_only=True) as opened:
        number = opened.id()

    def common(text: bytes) -> bytes:
        for prefix in ("rbd_data.", ""):
            for own, word in ((number, "ID"), (image, "NAME")):
                whole = f"{prefix}{own}".encode()
                text = text.replace(len(whole).to_bytes(4, "little") + whole, f"{prefix}{word}".encode())
        return text

    found = {}
    for each in io.list_objects():
        with rados.ReadOpCtx() as operation:
            values, _ = io.get_omap_vals(operation, "", "", 1000)
            io.operate_read_op(operation, each.key)
            omap = {key: common(value) for key, value in values if not key.endswith("_timestamp")}
        key = each.key.replace(number, "ID").replace(image, "NAME")
        omap = {each.replace(number, "ID").replace(image, "NAME"): value for each, value in omap.items()}
        found[key] = (omap, dict(io.get_xattrs(each.key)), common(io.read(each.key)))
    return found


def test_they_are_object_for_object_what_librbd_makes(ceph_admin: CephCluster, pool: Any) -> None:
    for size, features in ((1 << 30, None), (3 * MIB, ALL), (5 * MIB, 1), (16 * MIB, 5), (64 * MIB, 13)):
        options = {} if features is None else {"features": features}
        rbd.RBD().create(pool, "theirs", size, old_format=False, **options)
        expected = _objects(pool, "theirs")
        rbd.RBD().remove(pool, "theirs")
        assert FastImageCreator().create(ceph_admin, pool, "ours", size, features)
        assert _objects(pool, "ours") == expected, (size, features)
        assert {"rbd_directory", "rbd_id.NAME", "rbd_header.ID"} <= expected.keys()
        assert ("rbd_object_map.ID" in expected) == (features in {None, ALL, 13})
        rbd.RBD().remove(pool, "ours")


def test_librbd_goes_on_with_them(ceph_admin: CephCluster, pool: Any) -> None:
    assert FastImageCreator().create(ceph_admin, pool, "ours", 64 * MIB, None)
    with rbd.Image(pool, "ours") as image:
        image.write(b"first", 5 * MIB)
        image.resize(128 * MIB)
        image.create_snap("snap")
        image.write(b"later", 5 * MIB)
        assert image.flags() == 0  # or it would say that its object map is wrong
    rbd.RBD().clone(pool, "ours", "snap", pool, "copy")
    with rbd.Image(pool, "copy") as copy:
        assert copy.read(5 * MIB, 5) == b"first"
    rbd.RBD().remove(pool, "copy")
    with rbd.Image(pool, "ours") as image:
        image.remove_snap("snap")
    rbd.RBD().remove(pool, "ours")
    assert {each.key for each in pool.list_objects()} <= {"rbd_directory", "rbd_info", "rbd_children", "rbd_trash"}


def test_what_is_not_plain_is_left_to_librbd(ceph_admin: CephCluster, pool: Any, name: Name) -> None:
    assert not FastImageCreator().create(ceph_admin, pool, "journaling", MIB, ALL | 64)
    assert not FastImageCreator().create(ceph_admin, pool, "no-lock", MIB, 1 | 8)
    assert not FastImageCreator().create(ceph_admin, pool, "huge", 1 << 60, None)
    rbd.RBD().config_set(pool, "rbd_default_order", "20")
    assert not FastImageCreator().create(ceph_admin, pool, "own-settings", MIB, None)
    handle = ceph_admin.rados
    handle.create_pool(name("new"))
    with handle.open_ioctx(name("new")) as new:
        assert not FastImageCreator().create(ceph_admin, new, "first", MIB, None)
    handle.delete_pool(name("new"))
    assert rbd.RBD().list(pool) == []


def test_a_name_that_is_taken_is_left_as_it_is(ceph_admin: CephCluster, pool: Any) -> None:
    images = FastImageCreator()
    assert images.create(ceph_admin, pool, "taken", MIB, None)
    before = _objects(pool, "taken")
    with pytest.raises(rados.ObjectExists):
        images.create(ceph_admin, pool, "taken", 2 * MIB, None)
    assert _objects(pool, "taken") == before
    pool.write_full("rbd_id.half", b"somebody's")
    with pytest.raises(rados.ObjectExists):
        images.create(ceph_admin, pool, "half", MIB, None)
    assert rbd.RBD().list(pool) == ["taken"]
    assert pool.read("rbd_id.half") == b"somebody's"
    assert len({each.key for each in pool.list_objects()} - {"rbd_id.half"}) == len(before)


def test_the_header_is_made_last() -> None:
    """With it an image can be opened, and others take it for whole."""
    made = [call.target.partition(".")[0] for call in class_calls("ours", "0a", MIB, 22, ALL)]
    assert made == ["rbd_directory", "rbd_id", "rbd_object_map", "rbd_header"]


def test_what_fails_half_way_leaves_nothing(
    ceph_admin: CephCluster, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = "0123456789abcd"
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: number)
    before = {each.key for each in pool.list_objects()}
    pool.write_full(f"rbd_header.{number}", b"somebody's")
    with pytest.raises(rados.ObjectExists):
        FastImageCreator().create(ceph_admin, pool, "ours", MIB, ALL)
    assert {each.key for each in pool.list_objects()} == before | {f"rbd_header.{number}"}
    assert rbd.RBD().list(pool) == []
