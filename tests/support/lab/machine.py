"""Runs `zonewise lab` on this machine and checks for leftovers."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from support.lab import footprint
from zonewise.lab import slots
from zonewise.lab.controlplane import controlplane
from zonewise.lab.decide.cgroup_hierarchies import lab_cgroup
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups
from zonewise.lab.status import LabStatus

ZONEWISE = Path(sys.executable).with_name("zonewise")


class Machine:
    """This machine with the test's own state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.environ = {**os.environ, "ZONEWISE_STATE": str(state)}
        self.names: set[str] = set()
        self._settings = footprint.settings()
        self._dead_devices = footprint.dead_loop_devices()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.names |= {name for flag, name in itertools.pairwise(arguments) if flag == "--name"}
        return subprocess.Popen(
            [ZONEWISE, "lab", *arguments], env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        with self.start(*arguments) as process:
            output, messages = process.communicate(timeout=240)
        assert process.returncode == code, f"{arguments}: {output}{messages}"
        return output if code == 0 else messages

    def output(self, *arguments: str, code: int) -> str:
        """stdout of a command whose exit code is part of its result."""
        with self.start(*arguments) as process:
            output, messages = process.communicate(timeout=240)
        assert process.returncode == code, f"{arguments}: {output}{messages}"
        return output

    def status(self, name: str, *, code: int = 0) -> LabStatus:
        with self.start("status", "--name", name, "-o", "json") as process:
            output, messages = process.communicate(timeout=60)
        assert process.returncode == code, messages
        return msgspec.json.decode(output, type=LabStatus)

    def processes(self) -> list[str]:
        """Command lines of all processes started, directly or not, with this state directory."""
        variable = f"ZONEWISE_STATE={self.state}".encode()
        commands = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if variable in directory.joinpath("environ").read_bytes().split(b"\0"):
                    commands.append(directory.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return [command for command in commands if command]

    def data(self) -> list[Path]:
        """Data directories in memory of the labs that the test named."""
        directories = (controlplane.data_directory(self.state / "labs" / name) for name in self.names)
        return [directory for directory in directories if directory.exists()]

    def claims(self) -> list[Path]:
        return [owner for owner in slots.owners() if owner.is_relative_to(self.state)]

    def cgroups(self) -> list[Path]:
        roots = (hierarchy.path / lab_cgroup(name) for hierarchy in cgroups.known() for name in self.names)
        return [root for root in roots if root.exists()]

    def mounts(self) -> list[str]:
        return footprint.mounts(self.names, self.state)

    def dead_devices(self) -> set[str]:
        """Loop devices of ended nodes, new since the test began; those of other labs go soon."""
        return footprint.dead_loop_devices() - self._dead_devices

    def assert_untouched(self) -> None:
        assert self.processes() == []
        assert list(footprint.processes(self.names)) == []
        assert not self.state.exists()
        assert self.claims() == []
        assert self.data() == []
        assert [namespace for name in self.names for namespace in namespaces.of_lab(name)] == []
        assert self.cgroups() == []
        assert self.mounts() == []
        assert footprint.orphans(self.names) == set()
        assert footprint.written_by_labs(self._settings, footprint.settings()) == {}
        until(lambda: not self.dead_devices())


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "condition not met within 60 s"
        time.sleep(0.02)
