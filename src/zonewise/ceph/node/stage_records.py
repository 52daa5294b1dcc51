"""Stage records: a directory per volume, written before it is staged and removed after it is unstaged.

A node plugin that was killed at any point finds what it has to undo. The record has the intent; the kernel has the
actual state.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.ids import VolumeKind

_RECORD, _DRAFT = "stage.json", "stage.json.new"


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
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
        try:
            return msgspec.json.decode((self.directory(volume) / _RECORD).read_bytes(), type=StageRecord)
        except FileNotFoundError:
            return None

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
        return directory

    def drop(self, volume: str) -> None:
        directory = self.directory(volume)
        (directory / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def all(self) -> Iterator[StageRecord]:
        for record in sorted(self.root.glob(f"*/{_RECORD}")):
            yield msgspec.json.decode(record.read_bytes(), type=StageRecord)
