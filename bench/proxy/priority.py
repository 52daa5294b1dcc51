"""Real-time priority for the measured processes, so that other processes matter less."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.state import Lab

REAL_TIME: Final = ("chrt", "--rr", "1")
"""Command prefix: real-time priority, round robin among the measured processes."""


def raise_priority(lab: Lab) -> None:
    """For the lab's API server, etcd and this process."""
    plane = ControlPlane.attach(lab.directory)
    for pid in (plane.process(Program.ETCD).pid, plane.process(Program.APISERVER).pid, os.getpid()):
        _set(pid, os.SCHED_RR, 1)


def reset_priority(pid: int) -> None:
    """For a process that would keep a core busy for minutes."""
    _set(pid, os.SCHED_OTHER, 0)


def _set(pid: int, policy: int, priority: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
