"""Lower bound of the lab's start time: the same programs with the same flags, started directly by Popen.

Certificates are created before the measurement, and every program is started as early as it can run.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from zonewise.lab.build import binaries
from zonewise.lab.controlplane import programs
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import ControlPlaneConfig, Program


def binary(program: str) -> Path:
    return Path(binaries.find().path(program))


def start() -> float:
    """Seconds until the API server is ready and the controllers have made the default service account."""
    directory = Path(tempfile.mkdtemp(prefix="bare-"))
    plane = ControlPlane.prepare(directory, ControlPlaneConfig(version=binaries.DEFAULT_VERSION))
    plane.write_credentials()
    plane.layout.data.mkdir(mode=0o700)
    running: list[subprocess.Popen[bytes]] = []
    try:
        started = time.monotonic()
        running += [_start(plane, program) for program in (Program.ETCD, Program.APISERVER)]
        _wait_for(plane, "/readyz")
        running += [_start(plane, program) for program in (Program.CONTROLLER_MANAGER, Program.SCHEDULER)]
        _wait_for(plane, "/api/v1/namespaces/default/serviceaccounts/default")
        return time.monotonic() - started
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()
        plane.stop()
        shutil.rmtree(directory)


def _start(plane: ControlPlane, program: Program) -> subprocess.Popen[bytes]:
    command = programs.command(program, plane.settings, plane.layout)
    log = (plane.directory / f"{program}.log").open("wb")
    return subprocess.Popen(command, cwd=plane.layout.data, stdout=log, stderr=log)


def _wait_for(plane: ControlPlane, path: str) -> None:
    while True:
        try:
            plane.request("GET", path)
        except Exception:  # noqa: BLE001 - not up yet, in one of many ways
            time.sleep(0.01)
        else:
            return
