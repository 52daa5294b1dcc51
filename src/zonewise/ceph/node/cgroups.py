"""Cgroups for daemons that must outlive the plugin's container: a runtime kills all that is in a container's cgroups.

cgroup v2 is one hierarchy, mounted at `/sys/fs/cgroup`. With v1 that is a plain directory with one hierarchy per
controller below it, on hybrid hosts with v2 as another. A process is in one cgroup of each hierarchy, and safe only if it
has left the container's in all of them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from zonewise.ceph.node.mounts import Mount, table
from zonewise.errors import UsageError

PROCESSES: Final = "cgroup.procs"
_FILESYSTEMS: Final = frozenset({"cgroup", "cgroup2"})
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")  # empty in a new cgroup of v1, which then accepts no process
_HOST_NAMESPACE: Final = "cgroup:[4026531835]"  # PROC_CGROUP_INIT_INO of the kernel
_TIMEOUT_SECONDS: Final = 10


def prepare(path: Path) -> list[Path]:
    """Directories of the cgroup in all hierarchies. Raises UsageError unless a process there has left this container."""
    directories = locate(path, table())
    if not directories:
        raise UsageError(
            f"--daemon-cgroup {path}: no cgroup file system is mounted there or below {path.parent}: mount the host's "
            "/sys into this container"
        )
    try:
        create(directories)
        left_behind = inside(_cgroups_of("self"), _cgroups_in(directories), is_host=is_host_namespace())
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--daemon-cgroup {path}: no process can be moved there: {error}") from error
    if left_behind:
        raise UsageError(
            f"--daemon-cgroup {path}: daemons would stay in this container's cgroup of {', '.join(left_behind)}, and volumes "
            "would fail with each restart of it: use /sys/fs/cgroup/NAME, with the host's /sys and cgroup namespace"
        )
    return directories


def locate(path: Path, mounts: Iterable[Mount]) -> list[Path]:
    """The directory in the hierarchy that `path` is in, or else in each hierarchy mounted below an ancestor of it."""
    points = {Path(mount.point) for mount in mounts if mount.filesystem in _FILESYSTEMS}
    for ancestor in path.parents:
        below = sorted(point for point in points if point.is_relative_to(ancestor))
        if ancestor in points:
            return [path]
        if below:
            return [point / path.relative_to(ancestor) for point in below] if ancestor != Path("/") else []
    return []


def create(directories: Sequence[Path]) -> None:
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        for name in _CPUSET:
            with suppress(FileNotFoundError):
                if not (directory / name).read_text().strip():
                    (directory / name).write_text((directory.parent / name).read_text())
        if not (directory / PROCESSES).exists():
            raise FileNotFoundError(f"{directory} is not a cgroup")


def parse(text: str) -> dict[str, str]:
    """The content of /proc/PID/cgroup: path by controllers, "v2" for the hierarchy without."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return {controllers or "v2": path for _, controllers, path in lines}


def inside(container: Mapping[str, str], process: Mapping[str, str], *, is_host: bool) -> list[str]:
    """Hierarchies in which a process is in the container's cgroup, or below it.

    The root is no container's, if it is the host's: in a namespace of its own a container's cgroup looks like the root,
    and cgroups outside of it begin with "/..".
    """
    return [
        hierarchy
        for hierarchy, own in container.items()
        if (own != "/" or not is_host)
        and not process[hierarchy].startswith("/..")
        and Path(process[hierarchy]).is_relative_to(own)
    ]


def is_host_namespace() -> bool:
    return Path("/proc/self/ns/cgroup").readlink() == Path(_HOST_NAMESPACE)


def _cgroups_of(process: str) -> dict[str, str]:
    return parse(Path(f"/proc/{process}/cgroup").read_text())


def _cgroups_in(directories: Sequence[Path]) -> dict[str, str]:
    """Of a process that joined the cgroup."""
    joining = [f"{directory / PROCESSES}" for directory in directories]
    script = 'for file; do echo $$ >"$file" || exit 1; done; cat /proc/self/cgroup'
    result = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *joining],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    if result.returncode:
        raise OSError(result.stderr.strip())
    return parse(result.stdout)
