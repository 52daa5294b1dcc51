"""Who may use which kind of volume how."""

import pytest

from zonewise.ceph.decide import access
from zonewise.ceph.decide.access import AccessMode, VolumeAccess
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.node.rbd_stage import strangers
from zonewise.ceph.spec import csi_pb2 as csi

WRITERS_ON_NODES = {AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER}


def test_our_modes_are_those_of_the_specification() -> None:
    assert [mode.value for mode in AccessMode] == list(csi.VolumeCapability.AccessMode.Mode.keys())


@pytest.mark.parametrize("mode", [mode for mode in AccessMode if mode is not AccessMode.UNKNOWN])
def test_every_kind_and_mode(mode: AccessMode) -> None:
    assert bool(access.refusal(VolumeKind.RBD, VolumeAccess(mode))) == (mode in WRITERS_ON_NODES)
    assert not access.refusal(VolumeKind.RBD, VolumeAccess(mode, is_block=True))
    assert not access.refusal(VolumeKind.CEPHFS, VolumeAccess(mode))
    assert access.refusal(VolumeKind.CEPHFS, VolumeAccess(mode, is_block=True))


def test_only_file_systems_that_we_can_make() -> None:
    assert not access.refusal(VolumeKind.RBD, VolumeAccess(AccessMode.SINGLE_NODE_WRITER, filesystem="xfs"))
    assert "none of ext4, xfs" in access.refusal(
        VolumeKind.RBD, VolumeAccess(AccessMode.SINGLE_NODE_WRITER, filesystem="ntfs")
    )


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
        (AccessMode.SINGLE_NODE_WRITER, {"a"}, set(), {"a"}),
        (AccessMode.SINGLE_NODE_WRITER, set(), {"dead"}, set()),
        (AccessMode.MULTI_NODE_READER_ONLY, {"reader"}, set(), set()),
        (AccessMode.MULTI_NODE_READER_ONLY, {"reader", "writer"}, {"writer"}, {"writer"}),
        (AccessMode.MULTI_NODE_READER_ONLY, set(), {"dead"}, set()),
        (AccessMode.MULTI_NODE_MULTI_WRITER, {"a", "b"}, {"a"}, set()),
    ],
)
def test_who_is_in_the_way(mode: AccessMode, watchers: set[str], lockers: set[str], expected: set[str]) -> None:
    assert strangers(VolumeAccess(mode), watchers, lockers) == expected
