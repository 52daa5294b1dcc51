"""Directories of the lab: cache for builds, state directory for running labs, memory for etcd's data."""

import os
from collections.abc import Mapping
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of the lab's own, mode 0700, is made in it


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    return _root(environ, "ZONEWISE_CACHE", "XDG_CACHE_HOME", ".cache")


def state_root(environ: Mapping[str, str] = os.environ) -> Path:
    return _root(environ, "ZONEWISE_STATE", "XDG_STATE_HOME", ".local/state")


def _root(environ: Mapping[str, str], own: str, shared: str, default: str) -> Path:
    if environ.get(own):
        return Path(environ[own]).absolute()
    if environ.get(shared):
        return Path(environ[shared]).absolute() / "zonewise"
    return Path.home() / default / "zonewise"
