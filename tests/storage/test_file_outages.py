"""What CephFS volumes are answered with while the daemons behind a file system hang, and that retries succeed afterwards."""

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
from support.ceph.driver import MIB, Client, Driver, Refused
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
    """As an orchestrator does it."""

    def attempt() -> tuple[Any] | None:
        try:
            return (call(),)
        except Refused as refused:
            if refused.code not in {"UNAVAILABLE", "ABORTED"}:
                raise
            return None

    return (await eventually(attempt, "a retry succeeds"))[0]


@pytest.mark.parametrize("process", ["mgr", "mds"])
async def test_a_daemon_of_the_file_system_that_hangs(
    breakable_ceph: LabCeph, tmp_path: Path, name: Callable[[str], str], process: str
) -> None:
    with serving(tmp_path, breakable_ceph, 3) as impatient, serving(tmp_path, breakable_ceph, 60) as patient:
        there, kept = (patient.create(name(word), parameters=FILES, **WHERE) for word in ("there", "kept"))
        breakable_ceph.stop_process(process, signal.SIGSTOP)
        try:
            with pytest.raises(Refused, match="UNAVAILABLE"):
                impatient.create(name("new"), parameters=FILES, **WHERE)
            with pytest.raises(Refused, match="UNAVAILABLE"):
                impatient.delete(there.volume_id)
            with pytest.raises(Refused, match="UNAVAILABLE"):
                impatient.expand(kept.volume_id, 128 * MIB)
        finally:
            breakable_ceph.process(process).signal(signal.SIGCONT)
        made = await retried(functools.partial(patient.create, name("new"), parameters=FILES, **WHERE))
        assert made.volume_context["pool"] == breakable_ceph.data_pool("zone-b")
        again = await retried(functools.partial(patient.create, name("new"), parameters=FILES, **WHERE))
        assert again.volume_id == made.volume_id
        for volume in (made, there, kept):
            await retried(functools.partial(patient.delete, volume.volume_id))


def test_what_a_manager_that_died_left_of_a_copy_is_no_copy(
    breakable_ceph: LabCeph, tmp_path: Path, name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a directory first and its notes afterwards: without notes, its successor sees an empty volume that is complete."""
    with serving(tmp_path, breakable_ceph, 60) as driver:
        source = driver.create(name("v"), parameters=FILES, **WHERE)
        group = str(Path(source.volume_context["subvolumePath"]).parent.parent)
        with _mounted(breakable_ceph) as files:
            files.close(files.open(f"{source.volume_context['subvolumePath']}/data", "w"))

            def dies(step: CrashPoint) -> None:
                if step is CrashPoint.COPY_SNAPPED:
                    journaled = Journal(driver_cluster, "fs-meta").by_name(ObjectType.VOLUME, name("c"))
                    assert journaled is not None
                    files.mkdirs(f"{group}/{journaled.place.image}/half", 0o755)

            driver_cluster = csi_driver.own_cluster(tmp_path / "config.json")
            monkeypatch.setattr("zonewise.ceph.backend.cephfs.steps.reach", dies)
            with suppress(Refused):  # it is there already, for all that the manager knows
                driver.create(name("c"), volume=source.volume_id, parameters=FILES, **WHERE)
            monkeypatch.undo()
            copy = driver.create(name("c"), volume=source.volume_id, parameters=FILES, **WHERE)
            assert files.stat(f"{copy.volume_context['subvolumePath']}/data").st_size == 0
            driver_cluster.close()
        for volume in (copy, source):
            driver.delete(volume.volume_id)


async def test_the_doctor_leaves_a_copy_alone_that_the_manager_is_at(
    breakable_ceph: LabCeph, tmp_path: Path, name: Callable[[str], str]
) -> None:
    """However long ago it was begun: the manager goes on without the call that began it."""
    config = csi_driver.config_file(tmp_path, breakable_ceph)
    admin, numbers = csi_driver.own_cluster(config), itertools.count()
    written = Journal(admin, "fs-meta")
    threads = {"who": "mgr", "name": "mgr/volumes/max_concurrent_clones"}
    with serving(tmp_path, breakable_ceph, 60, CephFsBackend(copied_within_seconds=0)) as driver:
        source = driver.create(name("v"), parameters=FILES, **WHERE)
        admin.mon("config set", **threads, value="0")

        def copy(word: str) -> Volume:
            return driver.create(word, volume=source.volume_id, parameters=FILES, **WHERE)

        def looked() -> tuple[list[FsckFinding], bool] | None:
            """Once the manager has heard that it may copy nothing: a copy that it is at before and after the looks."""
            word = name(f"c{next(numbers)}")
            with suppress(Refused):
                copy(word)
            entry = written.by_name(ObjectType.VOLUME, word)
            assert entry is not None
            doctor = Fsck(admin, {VolumeKind.CEPHFS: CephFsBackend()}, {"fs-meta"})
            with suppress(CsiError):  # the manager asks for patience while it finishes one
                found = [each for each in doctor.examine(time.time() + 1, 0) if each.entry == entry]
                if CephFsBackend().is_being_made(admin, entry.place) and not doctor.away:
                    is_cleared = Provisioner(CephFsBackend(), 0).clear_away(admin, written, entry)
                    return (found, is_cleared) if CephFsBackend().is_being_made(admin, entry.place) else None
            return None

        try:
            found, is_cleared = await eventually(looked, "a copy that is not finished")
        finally:
            admin.mon("config set", **threads, value="4")  # of a removal the manager would not hear
        assert (found, is_cleared) == ([], False)
        for number in range(next(numbers)):
            made = await retried(functools.partial(copy, name(f"c{number}")))
            await retried(functools.partial(driver.delete, made.volume_id))
        await retried(functools.partial(driver.delete, source.volume_id))
    admin.close()


@contextmanager
def _mounted(ceph: LabCeph) -> Iterator[Any]:
    import cephfs  # noqa: PLC0415 - a binding of the system's

    files = cephfs.LibCephFS(conffile=str(ceph.conf))
    files.mount(filesystem_name=FILESYSTEM.encode())
    try:
        yield files
    finally:
        files.shutdown()
