"""Stage records: a directory per volume, written before it is staged and removed after it is unstaged.

A node plugin that was killed at any point finds what it has to undo. The record has the intent; the kernel has the
actual state. A record of a newer release is left alone, with its volume. A torn one is renamed, and its volume counts as
not recorded: what is mounted stays so, staging it again writes a new record, and unstaging it asks the kernel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from zonewise import log, stored_file
from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.objects import stored

_log = log.get_logger(__name__)

_RECORD, _DRAFT = "stage.json", "stage.json.new"


class StageRecord(stored.Stored, frozen=True, kw_only=True):
    volume: str
    kind: VolumeKind
    path: str
    access: VolumeAccess
    pool: str = ""
    """Of an RBD image."""
    image: str = ""
    mapper: str = ""
    """The mapper of its device: after an upgrade of the node the default may be another."""
    targets: dict[str, bool] = {}
    """Target paths, each with its read-only flag."""


class StageRecords:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)

    def directory(self, volume: str) -> Path:
        """The volume's directory. Its name is short, since socket paths are limited."""
        return self.root / hashlib.sha256(volume.encode()).hexdigest()[:32]

    def get(self, volume: str) -> StageRecord | None:
        """None if there is none, or it is torn. Raises FAILED_PRECONDITION for one of a newer release."""
        try:
            return stored_file.read(self.directory(volume) / _RECORD, StageRecord)
        except stored.NewerError as error:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {volume}: {error}") from error

    def is_torn(self, volume: str) -> bool:
        """Whether the volume had a record that could not be read, and has no other since."""
        directory = self.directory(volume)
        return any(directory.glob(f"{_RECORD}{stored_file.TORN}*")) and not (directory / _RECORD).exists()

    def put(self, stage: StageRecord) -> Path:
        """Written and synced to disk on return."""
        directory = self.directory(stage.volume)
        directory.mkdir(exist_ok=True, mode=0o700)
        draft = directory / _DRAFT
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(stage))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(directory / _RECORD)
        _sync(directory)
        return directory

    def drop(self, volume: str) -> None:
        directory = self.directory(volume)
        (directory / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def all(self) -> Iterator[StageRecord]:
        """Those that can be read; each other one is logged."""
        for path in sorted(self.root.glob(f"*/{_RECORD}")):
            try:
                record = stored_file.read(path, StageRecord)
            except stored.NewerError as error:
                log.warn_once(_log, "stage record left alone", problem=str(error))
            else:
                if record is not None:
                    yield record


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
