"""This machine as nodes need it: reads the facts, and refuses to start nodes on one that lacks something."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from zonewise.errors import UsageError
from zonewise.lab import paths
from zonewise.lab.decide import requirements
from zonewise.lab.decide.requirements import MachineFacts
from zonewise.lab.nodes import cgroups

_OVERLAY: Final = "overlay"
_ROUTING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_WATCHERS: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_WATCHERS_WANTED: Final = 8192
"""A kubelet takes 13 and containerd 2. Linux lets a user have 128, which eight nodes use up; the next never gets ready."""


def require(missing_packages: Sequence[str] = ()) -> None:
    """Raises UsageError, with a line for each lack."""
    if lines := list(requirements.lacks(facts(missing_packages))):
        raise UsageError("\n".join(lines))


def allow_watchers() -> None:
    """The limit stays when the lab ends: other labs may run by then, and what nobody takes costs nothing."""
    if not _has_watchers():
        _WATCHERS.write_text(str(_WATCHERS_WANTED))


def _has_watchers() -> bool:
    return int(_WATCHERS.read_text()) >= _WATCHERS_WANTED


def facts(missing_packages: Sequence[str] = ()) -> MachineFacts:
    is_root = os.geteuid() == 0
    hierarchies = cgroups.known()
    limits = () if _has_watchers() else (_WATCHERS,)
    written = (*(hierarchy.path for hierarchy in hierarchies), _ROUTING, *limits) if is_root else ()
    return MachineFacts(
        is_root=is_root,
        capabilities=requirements.effective_capabilities(Path("/proc/self/status").read_text()),
        namespaces=frozenset(entry.name for entry in Path("/proc/self/ns").iterdir()),
        has_cgroups=bool(hierarchies),
        has_overlay=_has_overlay(),
        read_only=tuple(str(path) for path in written if not os.access(path, os.W_OK)),
        on_overlay=tuple(_on_overlay()),
        missing_packages=tuple(missing_packages),
    )


def _on_overlay() -> Iterator[str]:
    """Where containerd has its snapshots: of the store in the cache, and of each node."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    for variable, path in (("ZONEWISE_CACHE", paths.cache_root()), ("ZONEWISE_STATE", paths.state_root())):
        if requirements.filesystem_of(path.resolve(), mountinfo) == _OVERLAY:
            yield variable


def _has_overlay() -> bool:
    """The kernel loads the module when it is first mounted. A container may not see the modules: then there may be one."""
    modules = Path("/lib/modules", platform.release(), "modules.dep")
    loaded = requirements.has_filesystem(_OVERLAY, Path("/proc/filesystems").read_text())
    return loaded or not modules.exists() or f"/{_OVERLAY}.ko" in modules.read_text()
