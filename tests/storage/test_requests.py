"""CSI requests: retries, sizes, pagination, and invalid or hostile input."""

import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner

from support.ceph.driver import BLOCK, MIB, Driver, RpcFailed
from support.cli.output import described
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.cli import csi_journal

Name = Callable[[str], str]
MEGABYTE = "x" * 1_000_000


def test_retries_are_idempotent(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"))
    assert driver.create(name("v")) == volume
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    assert driver.expand(volume.volume_id, 100 * MIB) == 128 * MIB  # never shrinks
    assert driver.create(name("v")).capacity_bytes == 128 * MIB
    for _ in range(2):
        driver.delete(volume.volume_id)
    again = driver.create(name("v"))
    assert again.volume_id != volume.volume_id
    driver.delete(volume.volume_id)  # a late retry for the deleted volume
    assert driver.create(name("v")) == again
    driver.delete(again.volume_id)


def test_names_may_have_any_printable_character(driver: Driver, csi_config: Path, name: Name) -> None:
    volume_name = name("né-名前-\U0001f600-'\"\\")
    volume = driver.create(volume_name, preferred=["zone-a"])
    assert driver.create(volume_name, preferred=["zone-b"]).volume_id == volume.volume_id
    assert volume_name in CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config)]).output
    driver.delete(volume.volume_id)
    assert volume_name not in CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config)]).output


def test_same_name_with_other_arguments_already_exists(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"))
    with pytest.raises(RpcFailed, match=r"ALREADY_EXISTS: .*fewer than"):
        driver.create(name("v"), size=128 * MIB)
    with pytest.raises(RpcFailed, match=r"ALREADY_EXISTS: .*more than the limit"):
        driver.create(name("v"), size=0, limit=32 * MIB)
    with pytest.raises(RpcFailed, match=r"ALREADY_EXISTS: .*comes from nothing"):
        driver.create(name("v"), volume=volume.volume_id)
    driver.delete(volume.volume_id)


def test_sizes_and_limits(driver: Driver, name: Name) -> None:
    odd = driver.create(name("odd"), size=MIB + 1)
    assert odd.capacity_bytes == 2 * MIB
    default = driver.create(name("default"), size=0)
    assert default.capacity_bytes == 1 << 30
    for size, limit, code in (
        (2 * MIB, MIB, "OUT_OF_RANGE"),
        (MIB + 1, 2 * MIB - 1, "OUT_OF_RANGE"),  # sizes are rounded to MiB
        (-1, 0, "INVALID_ARGUMENT"),
        (1 << 62, 0, "OUT_OF_RANGE"),
    ):
        with pytest.raises(RpcFailed, match=code):
            driver.create(name("bad"), size=size, limit=limit)
    for size, limit in ((MIB, MIB), (2 * MIB + 1, 3 * MIB - 1)):
        with pytest.raises(RpcFailed, match="OUT_OF_RANGE"):
            driver.client.ControllerExpandVolume(
                volume_id=odd.volume_id,
                capacity_range={"required_bytes": size, "limit_bytes": limit},
                secrets=driver.ceph.secrets,
            )
    for volume in (odd, default):
        driver.delete(volume.volume_id)


def test_volumes_are_listed_page_by_page(driver: Driver, name: Name) -> None:
    created = {driver.create(name(str(number)), size=MIB).volume_id for number in range(5)}
    listed: list[str] = []
    token = ""
    while True:
        page = driver.client.ListVolumes(max_entries=2, starting_token=token)
        assert len(page.entries) <= 2
        listed += [entry.volume.volume_id for entry in page.entries]
        token = page.next_token
        if not token:
            break
    assert created <= set(listed)
    assert len(listed) == len(set(listed))
    with pytest.raises(RpcFailed, match="ABORTED"):
        driver.client.ListVolumes(starting_token="nowhere")
    with pytest.raises(RpcFailed, match="INVALID_ARGUMENT"):
        driver.client.ListVolumes(max_entries=-1)
    for volume_id in created:
        driver.delete(volume_id)


def test_concurrent_calls_for_a_name_are_aborted(driver: Driver, name: Name) -> None:
    """Each call gets the volume, or ABORTED."""
    start = threading.Barrier(8)

    def create(_number: int) -> str:
        start.wait()
        try:
            return driver.create(name("v")).volume_id
        except RpcFailed as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        results = set(pool.map(create, range(8)))
    (volume_id,) = results - {"ABORTED"}
    driver.delete(volume_id)


def test_socket_is_private_to_its_owner(driver: Driver) -> None:
    channel: Any = driver.client.channel
    path = Path(channel._channel.target().decode().removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


HOSTILE = {
    "no name": ({"name": ""}, "INVALID_ARGUMENT: the volume has no name"),
    "long name": ({"name": "n" * 129}, "INVALID_ARGUMENT: the name of the volume has 129 bytes"),
    "huge name": ({"name": MEGABYTE}, "INVALID_ARGUMENT: the name of the volume has 1000000 bytes"),
    "line break": ({"name": "a\nb"}, "INVALID_ARGUMENT: the name of the volume has unprintable"),
    "no capability": ({"volume_capabilities": []}, "INVALID_ARGUMENT: volume_capabilities are missing"),
    "many writers": (
        {"volume_capabilities": [csi.VolumeCapability(mount={}, access_mode={"mode": "MULTI_NODE_MULTI_WRITER"})]},
        "INVALID_ARGUMENT: MULTI_NODE_MULTI_WRITER needs",
    ),
    "unknown cluster": ({"parameters": {"clusterID": "../../etc"}}, "INVALID_ARGUMENT: parameter clusterID"),
    "misspelt": (
        {"parameters": {"clusterID": "lab", "topologyConstrainedPool": "[]"}},
        "did you mean 'topologyConstrainedPools'",
    ),
    "path as pool": ({"parameters": {"clusterID": "lab", "pool": "../rbd"}}, "INVALID_ARGUMENT: parameter pool"),
    "no such pool": (
        {"parameters": {"clusterID": "lab", "pool": "gone"}},
        "INVALID_ARGUMENT: parameter pool: cluster lab has no pool 'gone'",
    ),
    "huge value": ({"parameters": {"clusterID": "lab", "pool": MEGABYTE}}, "INVALID_ARGUMENT: parameter pool has"),
    "not JSON": (
        {"parameters": {"clusterID": "lab", "topologyConstrainedPools": "[{"}},
        "topologyConstrainedPools is not valid JSON",
    ),
    "wrong key": (
        {"parameters": {"clusterID": "lab", "topologyConstrainedPools": '[{"poolname": "rbd-zone-a"}]'}},
        "unknown key 'poolname'; did you mean 'poolName'",
    ),
    "no secret": ({"secrets": {"userID": "admin"}}, "UNAUTHENTICATED: the secret must have"),
    "wrong key of a user": (
        {"secrets": {"userID": "admin", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}},
        "UNAUTHENTICATED: connecting to cluster lab as client.admin",
    ),
    "invalid key": ({"secrets": {"userID": "admin", "userKey": "../../key"}}, "UNAUTHENTICATED"),
    "no such user": (
        {"secrets": {"userID": "nobody", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}},
        "UNAUTHENTICATED",
    ),
}


@pytest.mark.parametrize(("fields", "message"), HOSTILE.values(), ids=HOSTILE)
def test_invalid_requests_are_rejected(driver: Driver, name: Name, fields: dict[str, Any], message: str) -> None:
    good = {
        "name": name("v"),
        "volume_capabilities": [BLOCK],
        "secrets": driver.ceph.secrets,
        "parameters": {"clusterID": "lab"},
    }
    with pytest.raises(RpcFailed) as error:
        driver.client.CreateVolume(**{**good, **fields})
    assert message in str(error.value)
    assert len(str(error.value)) < 1000
    assert driver.ceph.key not in str(error.value)


@pytest.mark.parametrize("text", ["../../etc/passwd", "zw1.rbd.vol.lab.7.3.short", "x" * 4000, "\0", "0001-0024-a-b"])
def test_unknown_ids_are_not_found(driver: Driver, text: str) -> None:
    driver.delete(text)
    driver.delete_snapshot(text)
    with pytest.raises(RpcFailed, match="NOT_FOUND"):
        driver.expand(text, MIB)
    with pytest.raises(RpcFailed, match="NOT_FOUND"):
        driver.client.ValidateVolumeCapabilities(volume_id=text, volume_capabilities=[BLOCK])
    assert not driver.client.ListSnapshots(snapshot_id=text).entries


def test_secrets_are_never_logged(driver: Driver, name: Name, capfd: pytest.CaptureFixture[str]) -> None:
    volume = driver.create(name("v"))
    driver.delete(volume.volume_id)
    with pytest.raises(RpcFailed):
        driver.create(name("w"), secrets={"userID": "admin", "userKey": "a-key-that-is-wrong"})
    output = capfd.readouterr()
    for text in (output.out, output.err):
        assert driver.ceph.key not in text
        assert "a-key-that-is-wrong" not in text


def test_journal_command_lists_a_volume(driver: Driver, csi_config: Path, name: Name) -> None:
    structlog.reset_defaults()  # then warnings go to standard error: other tests leave entries of a newer version
    volume = driver.create(name("v"), preferred=["zone-b"], requisite=["zone-b"])
    result = CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config), name("v")])
    assert result.exit_code == 0
    head, line = result.stdout.splitlines()
    assert head.split() == ["NAME", "WHAT", "STATE", "POOL", "DOMAIN", "SIZE", "FROM", "ID"]
    assert line.split()[1:5] == ["volume", "ready", "rbd-zone-b", "zone=zone-b"]
    assert line.endswith(volume.volume_id)
    missing = CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config), "nobody"])
    assert missing.exit_code == 1
    output = CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config), name("v"), "-o", "json"]).stdout
    (entry,) = described("csi journal", output)
    assert (entry["id"], entry["pool"], entry["domain"]) == (volume.volume_id, "rbd-zone-b", {"zone": "zone-b"})
    driver.delete(volume.volume_id)


def test_journal_operations_per_volume(driver: Driver, name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve and record; read, mark and forget: with fewer, another process could not finish after a crash."""
    from zonewise.ceph.controller.journal import Journal  # noqa: PLC0415

    driver.delete(driver.create(name("v")).volume_id)  # creates its journal object
    journals: list[Journal] = []
    original = Journal.__init__

    def record_journal(self: Journal, *arguments: Any) -> None:
        original(self, *arguments)
        journals.append(self)

    monkeypatch.setattr(Journal, "__init__", record_journal)
    volume = driver.create(name("v"))
    created = sum(journal.operations for journal in journals)
    driver.delete(volume.volume_id)
    assert (created, sum(journal.operations for journal in journals) - created) == (2, 3)
