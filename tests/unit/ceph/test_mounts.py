"""The kernel's table of mounts, as text."""

from pathlib import Path

from zonewise.ceph.node import mounts

TABLE = (
    "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    "40 35 7:0 / /var/lib/a\\040b ro,relatime - xfs /dev/loop0 rw,nouuid\n"
    "41 35 0:50 / /var/lib/a\\040b rw,nosuid shared:2 master:3 - fuse.ceph-fuse ceph-fuse rw,user_id=0\n"
)


def test_fields_are_read_and_escapes_undone() -> None:
    first, second, third = mounts.parse(TABLE)
    assert (first.device, first.root, first.point, first.filesystem, first.source) == (
        *("98:0", "/mnt1", "/mnt2", "ext3", "/dev/root"),
    )
    assert (second.point, second.read_only, second.filesystem_options) == ("/var/lib/a b", True, ("rw", "nouuid"))
    assert (third.filesystem, third.read_only) == ("fuse.ceph-fuse", False)


def test_the_last_of_those_on_one_point_is_on_top() -> None:
    table = mounts.parse(TABLE)
    top = mounts.at("/var/lib/a b/", table)
    assert top is not None
    assert top.filesystem == "fuse.ceph-fuse"
    assert mounts.at("/nowhere", table) is None


def test_a_path_is_followed_but_for_its_last_part(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "end").symlink_to("/elsewhere")
    assert mounts.where(str(tmp_path / "link" / "end")) == str(tmp_path / "real" / "end")


def test_the_kernel_s_own_table_is_understood() -> None:
    assert any(mount.point == "/proc" for mount in mounts.table())
