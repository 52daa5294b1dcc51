"""The kernel's mount table."""

from pathlib import Path

from zonewise.ceph.node import mounts

TABLE = (
    "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    "40 35 7:0 / /var/lib/a\\040b ro,relatime - xfs /dev/loop0 rw,nouuid\n"
    "41 35 0:50 / /var/lib/a\\040b rw,nosuid shared:2 master:3 - fuse.ceph-fuse ceph-fuse rw,user_id=0\n"
)


def test_mountinfo_fields_are_parsed_and_unescaped() -> None:
    first, second, third = mounts.parse(TABLE)
    assert (first.device, first.root, first.point, first.filesystem, first.source) == (
        *("98:0", "/mnt1", "/mnt2", "ext3", "/dev/root"),
    )
    assert (second.point, second.read_only, second.filesystem_options) == ("/var/lib/a b", True, ("rw", "nouuid"))
    assert (third.filesystem, third.read_only) == ("fuse.ceph-fuse", False)


def test_last_mount_on_a_point_is_on_top() -> None:
    table = mounts.parse(TABLE)
    top = mounts.at("/var/lib/a b/", table)
    assert top is not None
    assert top.filesystem == "fuse.ceph-fuse"
    assert mounts.at("/nowhere", table) is None


def test_canonical_path_keeps_the_last_component(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "end").symlink_to("/elsewhere")
    assert mounts.canonical_path(str(tmp_path / "link" / "end")) == str(tmp_path / "real" / "end")


def test_table_of_the_running_kernel_is_parsed() -> None:
    assert any(mount.point == "/proc" for mount in mounts.table())
