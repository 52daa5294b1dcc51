"""Where the simulator keeps what it can make again: compiled code and half-done sweeps, named after the sources."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from zonewise.routing import algorithms
from zonewise.simulator.decide import kernels


def directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "zonewise" / "simulator"


@cache
def sources_fingerprint() -> str:
    """Changes with any line of the algorithms or of the loops around them."""
    digest = hashlib.sha256()
    for source in sorted([*Path(algorithms.__file__).parent.glob("*.py"), Path(kernels.__file__)]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
