"""Containers as processes of this machine: start in the pod's network, watch, signal, exec.

Images are ignored: the command runs with this machine's files, as the agent's user, in a session and process group of
its own. Volumes are directories below the pod's own, which is the working directory: a mount path /config is ./config.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zonewise.lab import processes
from zonewise.lab.decide.environment import ContainerConfigError
from zonewise.lab.decide.podspec import RunContainer, RunPod
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import sandbox

_BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def start(
    directory: Path, namespace: str, container: RunContainer, argv: Sequence[str], variables: Mapping[str, str]
) -> processes.Process:
    environ = base_environment(directory) | dict(variables)
    if shutil.which(argv[0], path=environ["PATH"]) is None:
        raise ContainerConfigError(f"no command {argv[0]!r} on this machine: the lab pulls no images")
    cwd = Path(container.working_dir) if container.working_dir and Path(container.working_dir).is_dir() else directory
    inner = namespaces.command(namespace, argv, directory / sandbox.RESOLVER)
    return processes.spawn(directory, container.name, inner, environ=environ, cwd=cwd)


def base_environment(directory: Path) -> dict[str, str]:
    """The interpreter that runs the agent comes first, so that a pod's `python` has this package."""
    return {"PATH": f"{Path(sys.executable).parent}:{_BASE_PATH}", "HOME": str(directory), "LANG": "C.UTF-8"}


def find(directory: Path, container: RunContainer) -> processes.Process | None:
    """The container's process if it still runs."""
    process = processes.find(directory, container.name)
    return process if process is not None and process.running else None


async def ended(process: processes.Process) -> int | None:
    """The exit code once it has ended, as a shell counts; None if it was another agent's child: its exit code is lost."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return _reap(process.pid)
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(handle, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    kill_group(process.pid, signal.SIGKILL)  # what it left behind; its pid is still taken until it is reaped
    return _reap(process.pid)


def kill_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> int | None:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


async def run_beside(
    running: processes.Process, namespace: str, argv: Sequence[str], timeout_seconds: float
) -> tuple[bool, str]:
    """Whether a command with the container's environment and directory succeeded in time, and its output."""
    surroundings = Path("/proc", str(running.pid))
    try:
        pairs = (pair.partition(b"=") for pair in (surroundings / "environ").read_bytes().split(b"\0") if pair)
        process = await asyncio.create_subprocess_exec(
            *namespaces.command(namespace, argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=(surroundings / "cwd").readlink(),
            env={name: value for name, _, value in pairs},
            start_new_session=True,
        )
    except OSError as error:
        return False, f"the container has ended, or its directory is gone: {error}"
    return await _outcome(process, timeout_seconds)


async def _outcome(process: asyncio.subprocess.Process, timeout_seconds: float) -> tuple[bool, str]:
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_seconds)
    except TimeoutError:
        return False, f"no end after {timeout_seconds} s"
    finally:
        kill_group(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode == 0, output.decode(errors="replace").strip()


def make_volumes(
    directory: Path, pod: RunPod, container: RunContainer, config_maps: Mapping[str, Mapping[str, str]]
) -> None:
    """emptyDir and configMap volumes; others, such as the API server's token volume, are left out."""
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    for mount in container.volume_mounts:
        volume = volumes[mount.name]
        if volume.empty_dir is None and volume.config_map is None:
            continue
        home = directory / "volumes" / volume.name
        home.mkdir(parents=True, exist_ok=True)
        if volume.config_map is not None:
            _write_config_map(home, volume.config_map.name, volume.config_map.optional, config_maps)
        _link(directory / mount.mount_path.lstrip("/"), home)


def _write_config_map(home: Path, name: str, optional: bool, config_maps: Mapping[str, Mapping[str, str]]) -> None:
    if name not in config_maps and not optional:
        raise ContainerConfigError(f"configmap {name} is not there")
    for key, value in config_maps.get(name, {}).items():
        (home / key).write_text(value)


def _link(place: Path, home: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(home)
