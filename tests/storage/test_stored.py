"""Stage records and journal entries that are torn or of a newer release: only their own volumes are affected."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rados

from support.ceph import driver as csi_driver
from support.ceph.driver import Driver, RpcFailed
from support.ceph.node import NodeProcess, Volume, capability, running
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller.journal import NAMESPACE, SHARDS
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.ids import ObjectType
from zonewise.ceph.decide.journal_entry import key_of
from zonewise.ceph.node import mounts
from zonewise.ceph.node.stage_records import StageRecords
from zonewise.lab.ceph.cluster import JOURNAL_POOL, LabCeph

NEWER = b'{"version":2,"what":"only a newer release knows"}'


@pytest.fixture
def node(ceph_cluster: LabCeph, csi_config: Path, tmp_path: Path) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path, csi_config, ceph_cluster)) as process:
        yield process


@pytest.mark.timeout(300)
def test_a_node_plugin_starts_over_torn_empty_and_newer_records(
    node: NodeProcess, name: Callable[[str], str], tmp_path: Path
) -> None:
    damage = {"good": None, "cut": b'{"version":1,"volume":"x', "empty": b"", "block": b"\0" * 64, "newer": NEWER}
    volumes: dict[str, Volume] = {}
    for word in damage:
        asked = capability(block=word == "block")
        created = node.driver.create(name(word), preferred=["zone-a"], capability=asked)
        volumes[word] = Volume(node, created, tmp_path, asked).stage_and_publish()
        if word != "block":
            (volumes[word].target / "data").write_text(word)
    node.kill()
    records = {word: StageRecords(node.state).directory(volumes[word].id) / "stage.json" for word in damage}
    whole = records["newer"].read_bytes()
    for word, content in damage.items():
        if content is not None:
            records[word].write_bytes(content)
    node.restart()
    log = node.log.read_text()
    assert [word for word in damage if str(records[word]) in log] == ["cut", "empty", "block", "newer"]
    for word in ("good", "cut", "empty", "newer"):
        assert (volumes[word].target / "data").read_text() == word, "what is mounted stays"

    later = volumes["newer"]
    for call in (later.stage, later.publish, later.unpublish, later.unstage):
        with pytest.raises(RpcFailed, match=r"FAILED_PRECONDITION.*version 2"):
            call()
    assert (later.target / "data").read_text() == "newer"
    assert records["newer"].read_bytes() == NEWER

    with pytest.raises(RpcFailed, match=r"FAILED_PRECONDITION.*still published"):
        volumes["cut"].unstage()
    for word in ("good", "cut", "empty", "block"):
        volumes[word].unpublish_and_unstage()
        assert not records[word].parent.exists()
    volumes["cut"].stage_and_publish()
    assert (volumes["cut"].target / "data").read_text() == "cut"
    volumes["cut"].unpublish_and_unstage()

    records["newer"].write_bytes(whole)  # as if its release were back
    later.unpublish_and_unstage()
    for volume in volumes.values():
        assert mounts.at(str(volume.target)) is None
        node.driver.delete(volume.id)


def _entry(admin: CephCluster, volume_id: str) -> tuple[str, str]:
    parsed = ids.parse_volume_id(volume_id)
    assert parsed is not None
    key = key_of(ObjectType.VOLUME, parsed.token[: ids.HASH_DIGITS])
    return f"journal.{int(key[2:4], 16) % SHARDS:x}", key


def _read(admin: CephCluster, entry: tuple[str, str]) -> bytes:
    with rados.ReadOpCtx() as operation:
        values, _ = admin.ioctx(JOURNAL_POOL, NAMESPACE).get_omap_vals_by_keys(operation, (entry[1],))
        admin.ioctx(JOURNAL_POOL, NAMESPACE).operate_read_op(operation, entry[0])
        return bytes(dict(values)[entry[1]])


def _write(admin: CephCluster, entry: tuple[str, str], value: bytes) -> None:
    with rados.WriteOpCtx() as operation:
        admin.ioctx(JOURNAL_POOL, NAMESPACE).set_omap(operation, (entry[1],), (value,))
        admin.ioctx(JOURNAL_POOL, NAMESPACE).operate_write_op(operation, entry[0])


@pytest.mark.parametrize("value", [NEWER, b'{"name":"pvc', b"[]"], ids=["newer", "cut", "list"])
def test_a_journal_entry_that_cannot_be_read_stays_and_hides_no_other(
    driver: Driver, ceph_admin: CephCluster, name: Callable[[str], str], value: bytes
) -> None:
    good = driver.create(name("good"), preferred=["zone-a"]).volume_id
    bad = driver.create(name("bad"), preferred=["zone-a"]).volume_id
    entry = _entry(ceph_admin, bad)
    whole = _read(ceph_admin, entry)
    assert json.loads(whole)["version"] == 1
    _write(ceph_admin, entry, value)
    try:
        for call in (lambda: driver.create(name("bad"), preferred=["zone-a"]), lambda: driver.delete(bad)):
            with pytest.raises(RpcFailed, match=f"FAILED_PRECONDITION: journal key {entry[1]}"):
                call()
        listed = {found.volume.volume_id for found in driver.client.ListVolumes().entries}
        assert (good in listed, bad in listed) == (True, False)
        image = ids.parse_volume_id(bad)
        assert image is not None
        of_it = [line for line in csi_driver.findings(ceph_admin) if entry[1] in line or image.image in line]
        assert of_it == [f"UnreadableEntry {JOURNAL_POOL}/{entry[1]}"], "and its image is no orphan"
        assert _read(ceph_admin, entry) == value
    finally:
        _write(ceph_admin, entry, whole)
    driver.delete(bad)
    driver.delete(good)


def test_an_entry_of_the_first_release_is_changed_and_removed(
    driver: Driver, ceph_admin: CephCluster, name: Callable[[str], str]
) -> None:
    """Its bytes are compared when it is replaced, and that release wrote no version."""
    volume = driver.create(name("v"), preferred=["zone-a"]).volume_id
    entry = _entry(ceph_admin, volume)
    of_first = {key: value for key, value in json.loads(_read(ceph_admin, entry)).items() if key != "version"}
    _write(ceph_admin, entry, json.dumps(of_first, separators=(",", ":")).encode())
    assert driver.create(name("v"), preferred=["zone-a"]).volume_id == volume
    assert driver.expand(volume, 128 * csi_driver.MIB) == 128 * csi_driver.MIB
    assert json.loads(_read(ceph_admin, entry)) == {**of_first, "version": 1, "size_bytes": 128 * csi_driver.MIB}
    driver.delete(volume)
