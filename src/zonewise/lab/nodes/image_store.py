"""Image stores in the cache: images imported once, shared by the containerds of all nodes (`decide.image_store`).

A store is in use as long as a process holds its lock, and is not removed then: first the command that starts nodes, then the first
process of each. Lock files stay when their stores go, because another process may have opened one and wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from zonewise.errors import ZonewiseError
from zonewise.lab import paths
from zonewise.lab.decide import image_plan, image_store
from zonewise.lab.nodes.image_import import ImageImportConfig

_INDEXES: Final = ("index.json", "manifest.json")
"""Of archives in the formats of OCI and of Docker: they name the hash of everything else."""
# All that the import starts ends with it, and its mounts too; it ends with us.
_ALONE: Final = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--mount", "--pid", "--propagation=private", "--fork", "--kill-child", "--"),
)
_IMPORTED_WITHIN_SECONDS: Final = 900


def directory() -> Path:
    return paths.cache_root() / "node-images"


@contextmanager
def ensure(runtime: Path, archives: Sequence[Path], progress: Callable[[str], None]) -> Iterator[Path]:
    """The store with these images, made now unless it is there. It is in use as long as the context lasts."""
    store = directory() / image_store.key(runtime.name, map(digest, archives))
    store.parent.mkdir(parents=True, exist_ok=True)
    with _locked(lock(store), fcntl.LOCK_SH):
        if not store.is_dir():
            # A lock of its own, because nodes hold the other one for as long as they run.
            with _locked(store.with_name(f"{store.name}.making"), fcntl.LOCK_EX):
                if not store.is_dir():
                    progress("importing images for nodes: once")
                    _remove_abandoned()
                    _make(store, runtime, archives)
                    _remove_surplus(store.name)
        os.utime(store)
        yield store


def lock(store: Path) -> Path:
    """The file whose lock keeps a store from being removed (`node_init`)."""
    return store.with_name(f"{store.name}.lock")


def seed(store: Path, root: Path) -> None:
    """Make the root directory of a node's containerd from a store, unless it is there: it may hold more by now."""
    if root.exists():
        return
    scratch = root.with_name(f"{root.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    for name in image_store.SHARED:
        (scratch / name).mkdir(parents=True, mode=0o755)
        for entry in (store / name).iterdir():
            (scratch / name / entry.name).symlink_to(entry)
    for name in image_store.DATABASES:
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store / name, scratch / name)
    scratch.chmod(0o711)
    scratch.rename(root)


def digest(archive: Path) -> str:
    """A hash of the images in an archive."""
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name in _INDEXES else None
                if content is not None:
                    return hashlib.sha256(content.read()).hexdigest()
    except tarfile.TarError:
        pass  # it may be compressed: its importer knows
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(store: Path, runtime: Path, archives: Sequence[Path]) -> None:
    prefix = f".{store.name}-"
    for abandoned in store.parent.glob(f"{prefix}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=store.parent) as scratch:
        made = Path(scratch, "store")
        _import(ImageImportConfig(str(runtime), str(Path(scratch, "root")), tuple(map(str, archives))), Path(scratch))
        for name in (*image_store.DATABASES, *image_store.SHARED):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, "root", name).rename(made / name)
        made.rename(store)


def _import(config: ImageImportConfig, scratch: Path) -> None:
    """In a process with namespaces of its own, because containerd mounts what it unpacks. Its logs go with the scratch directory."""
    file, log = scratch / "import.json", scratch / "import.log"
    file.write_bytes(msgspec.json.encode(config))
    command = [*_ALONE, sys.executable, "-m", "zonewise.lab.nodes.image_import", str(file)]
    failed = f"images for nodes could not be imported from {', '.join(config.archives)}"
    try:
        with log.open("w") as output:
            subprocess.run(command, stdout=output, stderr=output, check=True, timeout=_IMPORTED_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        why = import_failure(log, Path(f"{config.root}.log"))
        raise ZonewiseError(f"{failed} within {_IMPORTED_WITHIN_SECONDS} seconds: {why}") from None
    except subprocess.CalledProcessError:
        raise ZonewiseError(f"{failed}: {import_failure(log, Path(f'{config.root}.log'))}") from None


def import_failure(log: Path, containerd: Path) -> str:
    """In one line, the end of the import's log and of containerd's, which the former names although it goes."""
    ends = {log: 1, containerd: 5}
    lines = [image_plan.failure(_lines(path), most) for path, most in ends.items()]
    return ": ".join(filter(None, lines)).replace(f": see {containerd}", "")


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _remove_abandoned() -> None:
    """Scratch directories and halves of removed stores, left by processes that were killed."""
    for entry in directory().glob(".*-*"):
        store = directory() / entry.name[1:].rpartition("-")[0]
        with suppress(BlockingIOError), _locked(lock(store), fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(entry, ignore_errors=True)


def _remove_surplus(newest: str) -> None:
    stores = {entry.name: entry.stat().st_mtime for entry in directory().iterdir() if _is_store(entry)}
    for name in image_store.surplus({**stores, newest: float("inf")}):
        store = directory() / name
        # It may be in use, or another process may have removed it.
        with suppress(BlockingIOError, FileNotFoundError), _locked(lock(store), fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(store.rename(store.with_name(f".{name}-removed")), ignore_errors=True)


def _is_store(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, kind)
        yield
