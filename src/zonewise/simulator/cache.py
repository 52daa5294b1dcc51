"""The simulator's cache directory: compiled code and checkpoints, named after the sources."""

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
    """A hash of the sources of the algorithms and the kernels."""
    digest = hashlib.sha256()
    for source in sorted([*Path(algorithms.__file__).parent.glob("*.py"), Path(kernels.__file__)]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
