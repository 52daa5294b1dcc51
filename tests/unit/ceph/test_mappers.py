"""Choice of the RBD mapper, and parsing for mappers whose kernel support may be missing on the test machine."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from zonewise.ceph.node import cephfs_stage, filesystems
from zonewise.ceph.node.mappers import MappedImage, Mapper, MapperClient, MapperError, choose_mapper
from zonewise.ceph.node.mappers.krbd import KernelRbd
from zonewise.ceph.node.mappers.nbd import listed_device
from zonewise.ceph.node.mappers.storage_daemon import _command
from zonewise.errors import UsageError

IMAGE = MappedImage("rbd-a", "csi-vol-1")


class Named:
    def __init__(self, name: str, lacks: str = "") -> None:
        self.name = name
        self._lacks = lacks

    def missing(self) -> str:
        return self._lacks


def mappers(*named: Named) -> list[Mapper]:
    return cast("list[Mapper]", list(named))


def test_first_available_mapper_is_chosen() -> None:
    choice = choose_mapper(mappers(Named("one", "no kernel"), Named("two"), Named("three")))
    assert choice.mapper.name == "two"
    assert choice.reason == "two is available; one is not: no kernel"


def test_requested_mapper_is_chosen_or_rejected() -> None:
    assert choose_mapper(mappers(Named("one"), Named("two")), "two").mapper.name == "two"
    with pytest.raises(MapperError, match="two is not: no nbd"):
        choose_mapper(mappers(Named("one"), Named("two", "no nbd")), "two")
    with pytest.raises(UsageError, match="one of one, two"):
        choose_mapper(mappers(Named("one"), Named("two")), "three")


def test_krbd_device_is_found_by_cluster_pool_and_name(tmp_path: Path) -> None:
    devices = {
        "0": {"pool": "rbd-a", "name": "csi-vol-1", "pool_ns": "", "cluster_fsid": "other", "current_snap": "-"},
        "1": {"pool": "rbd-a", "name": "csi-vol-1", "pool_ns": "", "cluster_fsid": "ours", "current_snap": "snap"},
        "2": {"pool": "rbd-a", "name": "csi-vol-1", "pool_ns": "", "cluster_fsid": "ours", "current_snap": "-"},
    }
    for number, facts in devices.items():
        (tmp_path / "devices" / number).mkdir(parents=True)
        for key, value in facts.items():
            (tmp_path / "devices" / number / key).write_text(f"{value}\n")
    own = tmp_path / "own"
    own.mkdir()
    mapper = KernelRbd(tmp_path)
    assert mapper.device(IMAGE, own) is None
    (own / "fsid").write_text("ours")
    assert mapper.device(IMAGE, own) == "/dev/rbd2"
    assert mapper.device(MappedImage("rbd-a", "csi-vol-2"), own) is None


def test_nbd_device_is_found_by_process_id() -> None:
    entry: dict[str, Any] = {"pool": "rbd-a", "namespace": "", "image": "csi-vol-1", "snap": "-"}
    listing = json.dumps([entry | {"id": 7, "device": "/dev/nbd0"}, entry | {"id": 8, "device": "/dev/nbd1"}])
    assert listed_device(listing, IMAGE, 8) == "/dev/nbd1"
    assert listed_device(listing, IMAGE, None) is None
    assert listed_device("", IMAGE, 8) is None


def test_key_is_in_no_command_and_no_repr() -> None:
    client = MapperClient("[global]\n", "csi", "c2VjcmV0")
    command = _command(client, MappedImage("a,b", "i"), read_only=True)
    assert "c2VjcmV0" not in repr(client) + " ".join(command)
    assert "pool=a,,b" in " ".join(command)


def test_kernel_support_for_cephfs() -> None:
    assert cephfs_stage.kernel_knows_ceph("nodev\tsysfs\n\text4\nnodev\tceph\n")
    assert not cephfs_stage.kernel_knows_ceph("nodev\tfuse\nfuseblk\n\txfs\n")


def test_ext4_size_from_its_superblock() -> None:
    block = bytearray(1024)
    block[0x4:0x8] = (5 << 18).to_bytes(4, "little")
    block[0x18:0x1C] = (2).to_bytes(4, "little")  # blocks of 4 KiB
    assert filesystems.ext4_bytes(bytes(block)) == 5 << 30
    block[0x150:0x154] = (1).to_bytes(4, "little")  # means nothing without the feature
    assert filesystems.ext4_bytes(bytes(block)) == 5 << 30
    block[0x60:0x64] = (0x80).to_bytes(4, "little")
    assert filesystems.ext4_bytes(bytes(block)) == (5 << 30) + (1 << 44)
