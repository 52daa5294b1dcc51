"""Who may use which kind of volume how."""

import pytest

from zonewise.ceph.decide import access
from zonewise.ceph.decide.access import Access, Mode
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.ids import Kind
from zonewise.ceph.node.rbd_stage import strangers
from zonewise.ceph.spec import csi_pb2 as csi

WRITERS_ON_NODES = {Mode.MULTI_NODE_SINGLE_WRITER, Mode.MULTI_NODE_MULTI_WRITER}


def test_our_modes_are_those_of_the_specification() -> None:
    assert [mode.value for mode in Mode] == list(csi.VolumeCapability.AccessMode.Mode.keys())


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.UNKNOWN])
def test_every_kind_and_mode(mode: Mode) -> None:
    assert bool(access.refusal(Kind.RBD, Access(mode))) == (mode in WRITERS_ON_NODES)
    assert not access.refusal(Kind.RBD, Access(mode, is_block=True))
    assert not access.refusal(Kind.CEPHFS, Access(mode))
    assert access.refusal(Kind.CEPHFS, Access(mode, is_block=True))


def test_only_file_systems_that_we_can_make() -> None:
    assert not access.refusal(Kind.RBD, Access(Mode.SINGLE_NODE_WRITER, filesystem="xfs"))
    assert "none of ext4, xfs" in access.refusal(Kind.RBD, Access(Mode.SINGLE_NODE_WRITER, filesystem="ntfs"))


@pytest.mark.parametrize(
    "capability",
    [
        csi.VolumeCapability(),
        csi.VolumeCapability(mount={}),
        csi.VolumeCapability(block={}, access_mode={"mode": 99}),
        csi.VolumeCapability(mount={"mount_flags": ["a\nb"]}, access_mode={"mode": "SINGLE_NODE_WRITER"}),
    ],
)
def test_what_says_too_little_or_too_much_is_refused(capability: csi.VolumeCapability) -> None:
    with pytest.raises(CsiError) as refused:
        access.read(capability)
    assert refused.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("mode", "watchers", "lockers", "expected"),
    [
        (Mode.SINGLE_NODE_WRITER, {"a"}, set(), {"a"}),
        (Mode.SINGLE_NODE_WRITER, set(), {"dead"}, set()),
        (Mode.MULTI_NODE_READER_ONLY, {"reader"}, set(), set()),
        (Mode.MULTI_NODE_READER_ONLY, {"reader", "writer"}, {"writer"}, {"writer"}),
        (Mode.MULTI_NODE_READER_ONLY, set(), {"dead"}, set()),
        (Mode.MULTI_NODE_MULTI_WRITER, {"a", "b"}, {"a"}, set()),
    ],
)
def test_who_is_in_the_way(mode: Mode, watchers: set[str], lockers: set[str], expected: set[str]) -> None:
    assert strangers(Access(mode), watchers, lockers) == expected
