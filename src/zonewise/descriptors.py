"""File descriptors that this process may open."""

from __future__ import annotations

import resource


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> int:
    """To what the administrator allows. The lower default is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
