"""CPU scheduling of the DNS processes: workers run before the controller where both want a core.

Both settings need no privileges. A kernel without them just ignores the preference.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from typing import Final

_SLICE_NANOSECONDS: Final = 100_000
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""System call numbers of sched_setattr(2), for which the C library has no function."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def favour_short_slices() -> None:
    """Request short time slices, and so run sooner after waking up: honoured by Linux 6.12 and later."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def use_batch_scheduling() -> None:
    """Never preempt a running process on waking up."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
