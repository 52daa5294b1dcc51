"""The two controllers of the bench: their commands, and the resource usage of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from zonewise.lab.controlplane import programs
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

OURS, STOCK, SHIPPED = "ours", "stock", "stock as shipped"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def memory_mib(self) -> dict[str, float]:
        """Resident memory, and anonymous memory, which excludes the shared pages of program files."""
        lines = (line.split() for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        kib = {words[0]: int(words[1]) for words in lines if words and words[0] in {"VmRSS:", "RssAnon:"}}
        return {"resident": kib["VmRSS:"] / 1024, "anonymous": kib["RssAnon:"] / 1024}


@contextmanager
def run(name: str, plane: ControlPlane) -> Iterator[Running]:
    command = COMMANDS[name](plane)
    with (plane.directory / f"{name.replace(' ', '-')}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=plane.directory, stdout=log, stderr=log)
    try:
        yield Running(process)
    finally:
        process.terminate()
        process.wait(30)


def _ours(plane: ControlPlane) -> list[str]:
    zonewise = str(Path(sys.executable).with_name("zonewise"))
    return [
        zonewise,
        "controller",
        f"--kubeconfig={plane.kubeconfig}",
        "--no-leader-elect",
        "--health-port=0",
        "--log-level=warning",
    ]


def _stock(plane: ControlPlane) -> list[str]:
    """Only that controller, without a lease, and with the lab's client limits instead of 20 requests per second."""
    settings = msgspec.structs.replace(plane.settings, controllers="endpointslice-controller")
    return [
        *programs.command(Program.CONTROLLER_MANAGER, settings, plane.layout),
        f"--kubeconfig={plane.kubeconfig}",
        "--use-service-account-credentials=false",
    ]


def _shipped(plane: ControlPlane) -> list[str]:
    return [*_stock(plane), "--kube-api-qps=20", "--kube-api-burst=30"]


COMMANDS: dict[str, Callable[[ControlPlane], list[str]]] = {
    OURS: _ours,
    STOCK: _stock,
    SHIPPED: _shipped,
}
