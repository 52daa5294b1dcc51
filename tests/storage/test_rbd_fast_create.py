"""Images created without librbd: the same objects as librbd creates, and usable by librbd."""

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
    """A pool that librbd has initialised."""
    handle = ceph_admin.rados
    handle.create_pool(name("pool"))
    with handle.open_ioctx(name("pool")) as io:
        rbd.RBD().pool_init(io, True)
        rbd.RBD().create(io, "first", MIB)
        rbd.RBD().remove(io, "first")
        yield io
    handle.delete_pool(name("pool"))


def _objects(io: Any, image: str) -> dict[str, tuple[dict[str, bytes], dict[str, bytes], bytes]]:
    """Content of every object of an image, with its id and name replaced, and without timestamps."""
    with rbd.Image(io, image, read_only=True) as opened:
        image_id = opened.id()

    def common(text: bytes) -> bytes:
        for prefix in ("rbd_data.", ""):
            for own, word in ((image_id, "ID"), (image, "NAME")):
                whole = f"{prefix}{own}".encode()
                text = text.replace(len(whole).to_bytes(4, "little") + whole, f"{prefix}{word}".encode())
        return text

    contents = {}
    for item in io.list_objects():
        with rados.ReadOpCtx() as operation:
            values, _ = io.get_omap_vals(operation, "", "", 1000)
            io.operate_read_op(operation, item.key)
            omap = {key: common(value) for key, value in values if not key.endswith("_timestamp")}
        key = item.key.replace(image_id, "ID").replace(image, "NAME")
        omap = {name.replace(image_id, "ID").replace(image, "NAME"): value for name, value in omap.items()}
        contents[key] = (omap, dict(io.get_xattrs(item.key)), common(io.read(item.key)))
    return contents


def test_objects_equal_those_of_librbd(ceph_admin: CephCluster, pool: Any) -> None:
    for size, features in ((1 << 30, None), (3 * MIB, ALL), (5 * MIB, 1), (16 * MIB, 5), (64 * MIB, 13)):
        options = {} if features is None else {"features": features}
        rbd.RBD().create(pool, "librbd", size, old_format=False, **options)
        expected = _objects(pool, "librbd")
        rbd.RBD().remove(pool, "librbd")
        assert FastImageCreator().create(ceph_admin, pool, "fast", size, features)
        assert _objects(pool, "fast") == expected, (size, features)
        assert {"rbd_directory", "rbd_id.NAME", "rbd_header.ID"} <= expected.keys()
        assert ("rbd_object_map.ID" in expected) == (features in {None, ALL, 13})
        rbd.RBD().remove(pool, "fast")


def test_librbd_uses_fast_created_images(ceph_admin: CephCluster, pool: Any) -> None:
    assert FastImageCreator().create(ceph_admin, pool, "fast", 64 * MIB, None)
    with rbd.Image(pool, "fast") as image:
        image.write(b"first", 5 * MIB)
        image.resize(128 * MIB)
        image.create_snap("snap")
        image.write(b"later", 5 * MIB)
        assert image.flags() == 0  # the object map is valid
    rbd.RBD().clone(pool, "fast", "snap", pool, "copy")
    with rbd.Image(pool, "copy") as copy:
        assert copy.read(5 * MIB, 5) == b"first"
    rbd.RBD().remove(pool, "copy")
    with rbd.Image(pool, "fast") as image:
        image.remove_snap("snap")
    rbd.RBD().remove(pool, "fast")
    assert {item.key for item in pool.list_objects()} <= {"rbd_directory", "rbd_info", "rbd_children", "rbd_trash"}


def test_other_images_are_left_to_librbd(ceph_admin: CephCluster, pool: Any, name: Name) -> None:
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


def test_existing_image_is_not_changed(ceph_admin: CephCluster, pool: Any) -> None:
    creator = FastImageCreator()
    assert creator.create(ceph_admin, pool, "taken", MIB, None)
    before = _objects(pool, "taken")
    with pytest.raises(rados.ObjectExists):
        creator.create(ceph_admin, pool, "taken", 2 * MIB, None)
    assert _objects(pool, "taken") == before
    pool.write_full("rbd_id.half", b"other")
    with pytest.raises(rados.ObjectExists):
        creator.create(ceph_admin, pool, "half", MIB, None)
    assert rbd.RBD().list(pool) == ["taken"]
    assert pool.read("rbd_id.half") == b"other"
    assert len({item.key for item in pool.list_objects()} - {"rbd_id.half"}) == len(before)


def test_header_is_created_last() -> None:
    """With it an image can be opened, and counts as complete."""
    targets = [call.target.partition(".")[0] for call in class_calls("fast", "0a", MIB, 22, ALL)]
    assert targets == ["rbd_directory", "rbd_id", "rbd_object_map", "rbd_header"]


def test_failed_creation_leaves_nothing(ceph_admin: CephCluster, pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    image_id = "0123456789abcd"
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: image_id)
    before = {item.key for item in pool.list_objects()}
    pool.write_full(f"rbd_header.{image_id}", b"other")
    with pytest.raises(rados.ObjectExists):
        FastImageCreator().create(ceph_admin, pool, "fast", MIB, ALL)
    assert {item.key for item in pool.list_objects()} == before | {f"rbd_header.{image_id}"}
    assert rbd.RBD().list(pool) == []
