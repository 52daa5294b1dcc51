"""Mounts as the kernel has them: read from its table, made and undone with mount(8).

The table is what is trusted about a volume: it outlives our process. A path is compared without touching what is mounted
there, since that may hang while the cluster is away.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zonewise.ceph.node import host_command

TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_ATTEMPTS = 64  # mounts stacked on one point
_BUSY_SECONDS, _POLL_SECONDS = 10.0, 0.1


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, see proc(5)."""

    device: str
    """major:minor of what is mounted."""
    root: str
    """What of it: "/" or, for a bind mount, a path inside."""
    point: str
    options: tuple[str, ...]
    filesystem: str
    source: str
    filesystem_options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        return "ro" in self.options or "ro" in self.filesystem_options


def parse(text: str) -> list[Mount]:
    return [_parse_line(line) for line in text.splitlines() if line]


def _parse_line(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    return Mount(
        device=fields[2],
        root=_plain(fields[3]),
        point=_plain(fields[4]),
        options=tuple(fields[5].split(",")),
        filesystem=rest[0],
        source=_plain(rest[1]),
        filesystem_options=tuple(rest[2].split(",")) if len(rest) > 2 else (),
    )


def _plain(text: str) -> str:
    return (
        _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text).encode("latin-1", "replace").decode("utf-8", "replace")
    )


def table() -> list[Mount]:
    return parse(TABLE.read_bytes().decode("latin-1"))


def at(point: str, mounts: Iterable[Mount] | None = None) -> Mount | None:
    """What is mounted exactly there, on top."""
    path = where(point)
    found = [mount for mount in (table() if mounts is None else mounts) if mount.point == path]
    return found[-1] if found else None


def where(path: str) -> str:
    """The path as the kernel's table says it; its last part is not followed, nor touched."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118 - of text: Path would touch nothing, too


def mount(source: str, point: str, filesystem: str, options: Sequence[str] = ()) -> None:
    host_command.run("mount", "-t", filesystem, *_option(options), "--", source, point)


def bind(source: str, point: str, *, read_only: bool = False) -> None:
    """Read-only takes a second step, as the kernel ignores the option in the first."""
    host_command.run("mount", "--bind", "--", source, point)
    if read_only:
        try:
            host_command.run("mount", "-o", "remount,bind,ro", "--", point)
        except Exception:
            unmount(point)  # writable although it should not be is worse than absent
            raise


def unmount(point: str, *, lazily: bool = False) -> None:
    """All that is mounted there, if anything."""
    path = where(point)
    for _ in range(_ATTEMPTS):
        if at(path) is None:
            return
        _unmount_one(path, ["--lazy"] if lazily else [])
    raise RuntimeError(f"{path} is still mounted after {_ATTEMPTS} unmounts")


def _unmount_one(path: str, how: Sequence[str]) -> None:
    """A mount may be busy for a moment without anybody in it: ceph-fuse calls mount(8) on its own after it has begun."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            host_command.run("umount", *how, "--no-canonicalize", "--", path)
        except host_command.CommandError as error:
            if "busy" not in error.said or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def _option(options: Sequence[str]) -> list[str]:
    return ["-o", ",".join(options)] if options else []
