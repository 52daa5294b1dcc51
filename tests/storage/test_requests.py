"""One request after the other: retries, sizes, pages; and what hostile or mistaken callers send."""

import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.ceph.driver import BLOCK, MIB, Driver, Refused
from support.cli.output import described
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.cli import csi_journal

Name = Callable[[str], str]
MEGABYTE = "x" * 1_000_000


def test_a_retry_of_anything_gives_the_same_and_does_nothing_more(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    volume = driver.create(name("v"))
    assert driver.create(name("v")) == volume
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    assert driver.expand(volume.volume_id, 100 * MIB) == 128 * MIB  # never smaller
    assert driver.create(name("v")).capacity_bytes == 128 * MIB
    for _ in range(2):
        driver.delete(volume.volume_id)
    again = driver.create(name("v"))
    assert again.volume_id != volume.volume_id
    driver.delete(volume.volume_id)  # a late retry for the one before
    assert driver.create(name("v")) == again
    driver.delete(again.volume_id)


def test_names_of_any_letters(driver: Driver, csi_config: Path, name: Name) -> None:
    called = name("né-名前-\U0001f600-'\"\\")
    volume = driver.create(called, preferred=["zone-a"])
    assert driver.create(called, preferred=["zone-b"]).volume_id == volume.volume_id
    assert called in CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config)]).output
    driver.delete(volume.volume_id)
    assert called not in CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config)]).output


def test_the_same_name_for_something_else_is_refused(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"))
    with pytest.raises(Refused, match=r"ALREADY_EXISTS: .*fewer than"):
        driver.create(name("v"), size=128 * MIB)
    with pytest.raises(Refused, match=r"ALREADY_EXISTS: .*more than the limit"):
        driver.create(name("v"), size=0, limit=32 * MIB)
    with pytest.raises(Refused, match=r"ALREADY_EXISTS: .*comes from nothing"):
        driver.create(name("v"), volume=volume.volume_id)
    driver.delete(volume.volume_id)


def test_sizes(driver: Driver, name: Name) -> None:
    odd = driver.create(name("odd"), size=MIB + 1)
    assert odd.capacity_bytes == 2 * MIB
    default = driver.create(name("default"), size=0)
    assert default.capacity_bytes == 1 << 30
    for size, limit, code in (
        (2 * MIB, MIB, "OUT_OF_RANGE"),
        (MIB + 1, 2 * MIB - 1, "OUT_OF_RANGE"),  # volumes have whole MiB
        (-1, 0, "INVALID_ARGUMENT"),
        (1 << 62, 0, "OUT_OF_RANGE"),
    ):
        with pytest.raises(Refused, match=code):
            driver.create(name("bad"), size=size, limit=limit)
    for size, limit in ((MIB, MIB), (2 * MIB + 1, 3 * MIB - 1)):
        with pytest.raises(Refused, match="OUT_OF_RANGE"):
            driver.client.ControllerExpandVolume(
                volume_id=odd.volume_id,
                capacity_range={"required_bytes": size, "limit_bytes": limit},
                secrets=driver.ceph.secrets,
            )
    for each in (odd, default):
        driver.delete(each.volume_id)


def test_volumes_are_listed_page_by_page_while_others_come_and_go(driver: Driver, name: Name) -> None:
    made = {driver.create(name(str(number)), size=MIB).volume_id for number in range(5)}
    seen: list[str] = []
    token = ""
    while True:
        page = driver.client.ListVolumes(max_entries=2, starting_token=token)
        assert len(page.entries) <= 2
        seen += [entry.volume.volume_id for entry in page.entries]
        token = page.next_token
        if not token:
            break
    assert made <= set(seen)
    assert len(seen) == len(set(seen))
    with pytest.raises(Refused, match="ABORTED"):
        driver.client.ListVolumes(starting_token="nowhere")
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        driver.client.ListVolumes(max_entries=-1)
    for each in made:
        driver.delete(each)


def test_one_call_at_a_time_for_a_name(driver: Driver, name: Name) -> None:
    """All get the volume, or are asked to come again."""
    start = threading.Barrier(8)

    def create(_number: int) -> str:
        start.wait()
        try:
            return driver.create(name("v")).volume_id
        except Refused as refused:
            return refused.code

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(create, range(8)))
    (volume_id,) = answers - {"ABORTED"}
    driver.delete(volume_id)


def test_only_the_owner_may_connect(driver: Driver) -> None:
    channel: Any = driver.client.channel
    path = Path(channel._channel.target().decode().removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


HOSTILE = {
    "no name": ({"name": ""}, "INVALID_ARGUMENT: the volume has no name"),
    "long name": ({"name": "n" * 129}, "INVALID_ARGUMENT: the volume's name has 129 bytes"),
    "huge name": ({"name": MEGABYTE}, "INVALID_ARGUMENT: the volume's name has 1000000 bytes"),
    "line break": ({"name": "a\nb"}, "INVALID_ARGUMENT: the volume's name has characters"),
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
    "no JSON": (
        {"parameters": {"clusterID": "lab", "topologyConstrainedPools": "[{"}},
        "topologyConstrainedPools is no JSON",
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
    "a key that is none": ({"secrets": {"userID": "admin", "userKey": "../../key"}}, "UNAUTHENTICATED"),
    "no such user": (
        {"secrets": {"userID": "nobody", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}},
        "UNAUTHENTICATED",
    ),
}


@pytest.mark.parametrize(("fields", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_can_not_be_is_refused_with_what_is_wrong(
    driver: Driver, name: Name, fields: dict[str, Any], message: str
) -> None:
    good = {
        "name": name("v"),
        "volume_capabilities": [BLOCK],
        "secrets": driver.ceph.secrets,
        "parameters": {"clusterID": "lab"},
    }
    with pytest.raises(Refused) as refused:
        driver.client.CreateVolume(**{**good, **fields})
    assert message in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert driver.ceph.key not in str(refused.value)


@pytest.mark.parametrize("text", ["../../etc/passwd", "zw1.rbd.vol.lab.7.3.short", "x" * 4000, "\0", "0001-0024-a-b"])
def test_ids_that_nobody_gave(driver: Driver, text: str) -> None:
    driver.delete(text)
    driver.delete_snapshot(text)
    with pytest.raises(Refused, match="NOT_FOUND"):
        driver.expand(text, MIB)
    with pytest.raises(Refused, match="NOT_FOUND"):
        driver.client.ValidateVolumeCapabilities(volume_id=text, volume_capabilities=[BLOCK])
    assert not driver.client.ListSnapshots(snapshot_id=text).entries


def test_secrets_are_never_logged(driver: Driver, name: Name, capfd: pytest.CaptureFixture[str]) -> None:
    volume = driver.create(name("v"))
    driver.delete(volume.volume_id)
    with pytest.raises(Refused):
        driver.create(name("w"), secrets={"userID": "admin", "userKey": "a-key-that-is-wrong"})
    said = capfd.readouterr()
    for text in (said.out, said.err):
        assert driver.ceph.key not in text
        assert "a-key-that-is-wrong" not in text


def test_the_journal_is_readable_by_people(driver: Driver, csi_config: Path, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-b"], requisite=["zone-b"])
    shown = CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config), name("v")])
    assert shown.exit_code == 0
    head, line = shown.output.splitlines()
    assert head.split() == ["NAME", "WHAT", "STATE", "POOL", "DOMAIN", "SIZE", "FROM", "ID"]
    assert line.split()[1:5] == ["volume", "ready", "rbd-zone-b", "zone=zone-b"]
    assert line.endswith(volume.volume_id)
    missing = CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config), "nobody"])
    assert missing.exit_code == 1
    said = CliRunner().invoke(csi_journal.journal, ["--config", str(csi_config), name("v"), "-o", "json"]).output
    (entry,) = described("csi journal", said)
    assert (entry["id"], entry["pool"], entry["domain"]) == (volume.volume_id, "rbd-zone-b", {"zone": "zone-b"})
    driver.delete(volume.volume_id)


def test_how_many_operations_of_the_journal_a_volume_costs(
    driver: Driver, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reserve and record; read, mark and forget: fewer could not be finished by somebody else after a crash."""
    from zonewise.ceph.controller.journal import Journal  # noqa: PLC0415

    driver.delete(driver.create(name("v")).volume_id)  # its part of the journal is there now
    seen: list[Journal] = []
    begin = Journal.__init__

    def counted(self: Journal, *arguments: Any) -> None:
        begin(self, *arguments)
        seen.append(self)

    monkeypatch.setattr(Journal, "__init__", counted)
    volume = driver.create(name("v"))
    created = sum(journal.operations for journal in seen)
    driver.delete(volume.volume_id)
    assert (created, sum(journal.operations for journal in seen) - created) == (2, 3)
