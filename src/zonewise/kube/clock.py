"""Clocks that times in the cluster and leases go by."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# Where there is no CLOCK_BOOTTIME, as on macOS, CLOCK_MONOTONIC counts during sleep.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Seconds of a clock that is never set and counts while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


def utc_now() -> datetime:
    return datetime.now(UTC)
