"""Who gets a core first where several processes want it: those that answer before the one that watches.

Both need no rights, and on a kernel that does not know them nothing is lost but the favour.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from typing import Final

_SLICE_NANOSECONDS: Final = 100_000
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274}
"""The number of the call sched_setattr(2), for which the C library has no name."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def answer_first() -> None:
    """Run for short whiles, and so sooner after waking up: Linux 6.12 and later take the whiles that a process asks for."""
    number = _SET_ATTRIBUTES.get(os.uname().machine)
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).syscall(number, 0, wanted, 0)


def give_way() -> None:
    """Never take a core from who has it just because there is news."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
