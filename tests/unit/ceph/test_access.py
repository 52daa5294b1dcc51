"""Volume access: which access mode each kind of volume supports."""

import pytest

from zonewise.ceph.decide import access
from zonewise.ceph.decide.access import AccessMode, VolumeAccess
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.node.rbd_stage import conflicting_clients
from zonewise.ceph.spec import csi_pb2 as csi

MULTI_NODE_WRITERS = {AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER}


def test_access_modes_match_the_csi_specification() -> None:
    assert [mode.value for mode in AccessMode] == list(csi.VolumeCapability.AccessMode.Mode.keys())


@pytest.mark.parametrize("mode", [mode for mode in AccessMode if mode is not AccessMode.UNKNOWN])
def test_access_modes_supported_by_each_kind(mode: AccessMode) -> None:
    assert bool(access.refusal(VolumeKind.RBD, VolumeAccess(mode))) == (mode in MULTI_NODE_WRITERS)
    assert not access.refusal(VolumeKind.RBD, VolumeAccess(mode, is_block=True))
    assert not access.refusal(VolumeKind.CEPHFS, VolumeAccess(mode))
    assert access.refusal(VolumeKind.CEPHFS, VolumeAccess(mode, is_block=True))


def test_unsupported_file_systems_are_rejected() -> None:
    assert not access.refusal(VolumeKind.RBD, VolumeAccess(AccessMode.SINGLE_NODE_WRITER, filesystem="xfs"))
    assert "use ext4 or xfs" in access.refusal(
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
def test_incomplete_capabilities_are_rejected(capability: csi.VolumeCapability) -> None:
    with pytest.raises(CsiError) as error:
        access.parse_capability(capability)
    assert error.value.code == "INVALID_ARGUMENT"


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
def test_clients_that_conflict_with_an_access_mode(
    mode: AccessMode, watchers: set[str], lockers: set[str], expected: set[str]
) -> None:
    assert conflicting_clients(VolumeAccess(mode), watchers, lockers) == expected
