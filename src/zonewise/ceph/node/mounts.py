"""Mounts: read from the kernel's mount table, changed with mount(8) and umount(8).

The table is the truth about a volume, since it outlives the process. Paths are compared without touching what is
mounted there, which may hang while the cluster is unreachable.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise.ceph.node import host_command

TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MAX_STACKED: Final = 64  # mounts on one mount point
_BUSY_SECONDS, _POLL_SECONDS = 10.0, 0.1


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, see proc(5)."""

    device: str
    """major:minor of what is mounted."""
    root: str
    """Its mounted part: "/" or, for a bind mount, a path inside."""
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
        root=_unescape(fields[3]),
        point=_unescape(fields[4]),
        options=tuple(fields[5].split(",")),
        filesystem=rest[0],
        source=_unescape(rest[1]),
        filesystem_options=tuple(rest[2].split(",")) if len(rest) > 2 else (),
    )


def _unescape(text: str) -> str:
    return (
        _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text).encode("latin-1", "replace").decode("utf-8", "replace")
    )


def table() -> list[Mount]:
    return parse(TABLE.read_bytes().decode("latin-1"))


def at(point: str, mounts: Iterable[Mount] | None = None) -> Mount | None:
    """The topmost mount at exactly this path."""
    path = canonical_path(point)
    matching = [mount for mount in (table() if mounts is None else mounts) if mount.point == path]
    return matching[-1] if matching else None


def canonical_path(path: str) -> str:
    """The path as in the mount table. The last component is not resolved, so it is not touched."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118 - no Path: it is only text


def mount(source: str, point: str, filesystem: str, options: Sequence[str] = ()) -> None:
    host_command.run("mount", "-t", filesystem, *_option(options), "--", source, point)


def bind(source: str, point: str, *, read_only: bool = False) -> None:
    """Read-only needs a remount, as the kernel ignores the option in the first mount."""
    host_command.run("mount", "--bind", "--", source, point)
    if read_only:
        try:
            host_command.run("mount", "-o", "remount,bind,ro", "--", point)
        except Exception:
            unmount(point)  # no mount is better than a writable one
            raise


def unmount(point: str, *, lazily: bool = False) -> None:
    """Unmount everything at this path, if anything."""
    path = canonical_path(point)
    for _ in range(_MAX_STACKED):
        if at(path) is None:
            return
        _unmount_one(path, ["--lazy"] if lazily else [])
    raise RuntimeError(f"{path} is still mounted after {_MAX_STACKED} unmounts")


def _unmount_one(path: str, options: Sequence[str]) -> None:
    """A mount may be busy for a moment without users: ceph-fuse calls mount(8) itself after it has started."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            host_command.run("umount", *options, "--no-canonicalize", "--", path)
        except host_command.CommandError as error:
            if "busy" not in error.output or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def _option(options: Sequence[str]) -> list[str]:
    return ["-o", ",".join(options)] if options else []
