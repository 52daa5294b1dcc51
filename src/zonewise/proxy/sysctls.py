"""Kernel settings of connection tracking, with the flags and defaults of kube-proxy.

For a proxy in place of kube-proxy. A container may write them only if it is privileged: the manifest lets an init
container do it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise import log

_log = log.get_logger(__name__)

_NETFILTER: Final = Path("/proc/sys/net/netfilter")


@dataclass(frozen=True, slots=True)
class ConntrackSettings:
    """0 leaves the kernel's own value. Half-closed connections of slow servers must outlive the kernel's one minute."""

    max_per_core: int
    minimum: int
    established_seconds: int
    close_wait_seconds: int

    def values(self, cores: int) -> dict[str, int]:
        wanted = {
            "nf_conntrack_max": max(self.max_per_core * cores, self.minimum) if self.max_per_core else 0,
            "nf_conntrack_tcp_timeout_established": self.established_seconds,
            "nf_conntrack_tcp_timeout_close_wait": self.close_wait_seconds,
        }
        return {name: value for name, value in wanted.items() if value}


def set_conntrack(settings: ConntrackSettings) -> None:
    """In the current network namespace. Values are only raised, as by kube-proxy: others may want them higher still."""
    for name, value in settings.values(os.cpu_count() or 1).items():
        path = _NETFILTER / name
        try:
            current = int(path.read_text())
            if current < value:
                path.write_text(str(value))
                _log.info("kernel setting changed", name=name, value=value, before=current)
        except OSError as error:
            remedy = f"run zonewise proxy --init-only with full privileges, or write {value} to {path}"
            _log.warning("kernel setting unchanged", name=name, error=str(error), remedy=remedy)
