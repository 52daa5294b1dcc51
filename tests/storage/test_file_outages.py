"""CephFS volumes while the manager or metadata server hangs, and retries afterwards."""

import functools
import itertools
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Client, Driver, RpcFailed
from support.waiting import eventually
from zonewise.ceph.backend.cephfs import CephFsBackend
from zonewise.ceph.backend.cluster import CephClusters
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.controller.fsck import Fsck, FsckFinding
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.controller.service import ControllerService
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.spec.csi_pb2 import Volume
from zonewise.lab.ceph.cluster import FILESYSTEM, LabCeph

pytestmark = pytest.mark.xdist_group("file-outages")  # one Ceph of their own
FILES = {"type": "cephfs"}
WHERE = {"preferred": ["zone-b"], "requisite": ["zone-a", "zone-b", "zone-c"]}


@contextmanager
def serving(
    folder: Path, ceph: LabCeph, timeout_seconds: float, backend: CephFsBackend | None = None
) -> Iterator[Driver]:
    clusters = CephClusters(CsiConfigFile(csi_driver.config_file(folder, ceph)), timeout_seconds)
    socket = folder / f"{uuid.uuid4().hex[:8]}.sock"
    server = GrpcServer(
        f"unix://{socket}", {"Controller": ControllerService(clusters, {VolumeKind.CEPHFS: backend or CephFsBackend()})}
    )
    server.start()
    client = Client(socket)
    try:
        yield Driver(client, ceph)
    finally:
        client.channel.close()
        server.stop(5)
        clusters.close()


async def retried(call: Callable[[], Any]) -> Any:
    """As an orchestrator does."""

    def attempt() -> tuple[Any] | None:
        try:
            return (call(),)
        except RpcFailed as error:
            if error.code not in {"UNAVAILABLE", "ABORTED"}:
                raise
            return None

    return (await eventually(attempt, "a retry succeeds"))[0]


@pytest.mark.parametrize("process", ["mgr", "mds"])
async def test_hanging_manager_or_mds_is_unavailable(
    breakable_ceph: LabCeph, tmp_path: Path, name: Callable[[str], str], process: str
) -> None:
    with serving(tmp_path, breakable_ceph, 3) as impatient, serving(tmp_path, breakable_ceph, 60) as patient:
        existing, kept = (patient.create(name(word), parameters=FILES, **WHERE) for word in ("there", "kept"))
        breakable_ceph.stop_process(process, signal.SIGSTOP)
        try:
            with pytest.raises(RpcFailed, match="UNAVAILABLE"):
                impatient.create(name("new"), parameters=FILES, **WHERE)
            with pytest.raises(RpcFailed, match="UNAVAILABLE"):
                impatient.delete(existing.volume_id)
            with pytest.raises(RpcFailed, match="UNAVAILABLE"):
                impatient.expand(kept.volume_id, 128 * MIB)
        finally:
            breakable_ceph.process(process).signal(signal.SIGCONT)
        created = await retried(functools.partial(patient.create, name("new"), parameters=FILES, **WHERE))
        assert created.volume_context["pool"] == breakable_ceph.data_pool("zone-b")
        again = await retried(functools.partial(patient.create, name("new"), parameters=FILES, **WHERE))
        assert again.volume_id == created.volume_id
        for volume in (created, existing, kept):
            await retried(functools.partial(patient.delete, volume.volume_id))


def test_half_created_copy_of_a_dead_manager_is_restarted(
    breakable_ceph: LabCeph, tmp_path: Path, name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager creates the directory before its metadata: without metadata its successor sees an empty, complete subvolume."""
    with serving(tmp_path, breakable_ceph, 60) as driver:
        source = driver.create(name("v"), parameters=FILES, **WHERE)
        group = str(Path(source.volume_context["subvolumePath"]).parent.parent)
        with _mounted(breakable_ceph) as files:
            files.close(files.open(f"{source.volume_context['subvolumePath']}/data", "w"))

            def leave_directory(step: CrashPoint) -> None:
                if step is CrashPoint.COPY_SNAPPED:
                    entry = Journal(driver_cluster, "fs-meta").by_name(ObjectType.VOLUME, name("c"))
                    assert entry is not None
                    files.mkdirs(f"{group}/{entry.location.image}/half", 0o755)

            driver_cluster = csi_driver.own_cluster(tmp_path / "config.json")
            monkeypatch.setattr("zonewise.ceph.backend.cephfs.crash_points.crash_if_armed", leave_directory)
            with suppress(RpcFailed):  # the manager reports that it exists
                driver.create(name("c"), volume=source.volume_id, parameters=FILES, **WHERE)
            monkeypatch.undo()
            copy = driver.create(name("c"), volume=source.volume_id, parameters=FILES, **WHERE)
            assert files.stat(f"{copy.volume_context['subvolumePath']}/data").st_size == 0
            driver_cluster.close()
        for volume in (copy, source):
            driver.delete(volume.volume_id)


async def test_doctor_leaves_copies_in_progress_alone(
    breakable_ceph: LabCeph, tmp_path: Path, name: Callable[[str], str]
) -> None:
    """Whatever its age: the manager continues a copy without the call that started it."""
    config = csi_driver.config_file(tmp_path, breakable_ceph)
    admin, numbers = csi_driver.own_cluster(config), itertools.count()
    journal = Journal(admin, "fs-meta")
    option = {"who": "mgr", "name": "mgr/volumes/max_concurrent_clones"}
    with serving(tmp_path, breakable_ceph, 60, CephFsBackend(copy_timeout_seconds=0)) as driver:
        source = driver.create(name("v"), parameters=FILES, **WHERE)
        admin.mon("config set", **option, value="0")

        def copy(word: str) -> Volume:
            return driver.create(word, volume=source.volume_id, parameters=FILES, **WHERE)

        def check() -> tuple[list[FsckFinding], bool] | None:
            """Findings and repair for a copy that is in progress before and after; None if the manager finished it."""
            word = name(f"c{next(numbers)}")
            with suppress(RpcFailed):
                copy(word)
            entry = journal.by_name(ObjectType.VOLUME, word)
            assert entry is not None
            checker = Fsck(admin, {VolumeKind.CEPHFS: CephFsBackend()}, {"fs-meta"})
            with suppress(CsiError):  # EAGAIN while the manager finishes a copy
                findings = [finding for finding in checker.examine(time.time() + 1, 0) if finding.entry == entry]
                if CephFsBackend().is_being_created(admin, entry.location) and not checker.unavailable:
                    is_cleared = Provisioner(CephFsBackend(), 0).remove_abandoned(admin, journal, entry)
                    return (findings, is_cleared) if CephFsBackend().is_being_created(admin, entry.location) else None
            return None

        try:
            findings, is_cleared = await eventually(check, "a copy in progress")
        finally:
            admin.mon("config set", **option, value="4")  # the manager does not notice the removal of an option
        assert (findings, is_cleared) == ([], False)
        for number in range(next(numbers)):
            created = await retried(functools.partial(copy, name(f"c{number}")))
            await retried(functools.partial(driver.delete, created.volume_id))
        await retried(functools.partial(driver.delete, source.volume_id))
    admin.close()


@contextmanager
def _mounted(ceph: LabCeph) -> Iterator[Any]:
    import cephfs  # noqa: PLC0415 - a system package

    files = cephfs.LibCephFS(conffile=str(ceph.conf))
    files.mount(filesystem_name=FILESYSTEM.encode())
    try:
        yield files
    finally:
        files.shutdown()
