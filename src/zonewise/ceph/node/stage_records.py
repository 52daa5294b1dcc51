"""Stage records: a directory per volume, written before it is staged and removed after it is unstaged.

A node plugin that was killed at any point finds what it has to undo. The record has the intent; the kernel has the
actual state. On a full disk nothing new is recorded, and so nothing is staged or published; what is recorded stays.
A record of a newer release, or one that cannot be read, is left alone, with its volume. A torn one is renamed,
and its volume counts as not recorded: what is mounted stays so, staging it again writes a new record, and unstaging it
asks the kernel.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from zonewise import log, stored_file
from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.objects import stored

_log = log.get_logger(__name__)

_RECORD, _DRAFT = "stage.json", "stage.json.new"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class StateDirectoryFullError(CsiError):
    """A record could not be written; an earlier one is still there."""

    def __init__(self, volume: str, root: Path) -> None:
        message = f"volume {volume}: the file system of this node's state directory {root} is full: free space on it"
        super().__init__(GrpcCode.RESOURCE_EXHAUSTED, message)


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
        """None if there is none, or it is torn. Raises FAILED_PRECONDITION for one of a newer release or unreadable."""
        try:
            return stored_file.read(self.directory(volume) / _RECORD, StageRecord)
        except stored.NewerError as error:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {volume}: {error}") from error
        except OSError as error:
            problem = f"its stage record {self.directory(volume) / _RECORD} can't be read: {error.strerror}"
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {volume}: {problem}; repair or remove it") from error

    def is_torn(self, volume: str) -> bool:
        """Whether the volume had a record that could not be read, and has no other since."""
        directory = self.directory(volume)
        return any(directory.glob(f"{_RECORD}{stored_file.TORN}*")) and not (directory / _RECORD).exists()

    def put(self, stage: StageRecord) -> Path:
        """Written and synced to disk on return. Raises StateDirectoryFullError, and then leaves nothing behind."""
        directory = self.directory(stage.volume)
        try:
            directory.mkdir(exist_ok=True, mode=0o700)
            _write(directory, msgspec.json.encode(stage))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with suppress(OSError):
                (directory / _DRAFT).unlink(missing_ok=True)
                directory.rmdir()  # fails if there is an earlier record
            raise StateDirectoryFullError(stage.volume, self.root) from error
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
            except OSError as error:
                log.warn_once(_log, "stage record unreadable", problem=f"{path}: {error.strerror or error}")
            else:
                if record is not None:
                    yield record


def _write(directory: Path, content: bytes) -> None:
    draft = directory / _DRAFT
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(directory / _RECORD)
    _sync(directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
