"""Real-time priority for all who take part, so that neighbours on the machine don't count; none where that would starve them."""

from __future__ import annotations

import os
from pathlib import Path

from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.state import Lab

AHEAD = ("chrt", "--rr", "1")
"""Before a command: ahead of neighbours, and in turn with each other."""


def go_ahead(lab: Lab) -> None:
    """The lab's API server with its store, and ourselves."""
    plane = ControlPlane.attach(lab.directory)
    for pid in (plane.process(Program.ETCD).pid, plane.process(Program.APISERVER).pid, os.getpid()):
        _set(pid, os.SCHED_RR, 1)


def fall_back(pid: int) -> None:
    """A process that would keep a core busy for minutes."""
    _set(pid, os.SCHED_OTHER, 0)


def _set(pid: int, policy: int, priority: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
