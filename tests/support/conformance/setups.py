"""Set-ups under test: what serves Services, DNS and EndpointSlices, and how it is installed in a lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.state import Lab, LabOptions

MANIFESTS: Final = Path(__file__).parent / "manifests"
_ZONES: Final = 3
_READY_WITHIN_SECONDS: Final = 300


class Setup(StrEnum):
    STOCK = "stock"
    OURS = "ours"
    OVERLAY = "overlay"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    what: str
    stock_data_plane: bool
    """kube-proxy, CoreDNS and the EndpointSlice controller."""
    install: tuple[str, ...] = ()
    """Arguments of `zonewise install`; none leaves Zonewise out."""


_PARTS: Final = {
    Setup.STOCK: _Parts(what="kube-proxy (nftables), CoreDNS and the stock controllers", stock_data_plane=True),
    Setup.OURS: _Parts(
        what="Zonewise in the place of kube-proxy, CoreDNS and the EndpointSlice controller",
        stock_data_plane=False,
        install=("--mode=own", "--only=slices,disruption,proxy-all,dns"),
    ),
    Setup.OVERLAY: _Parts(
        what="stock, and Zonewise's hints, webhooks and disruption guard beside it",
        stock_data_plane=True,
        install=("--mode=overlay", "--only=slices,disruption"),
    ),
}


def choose(name: str) -> list[Setup]:
    """The set-up of this name; all for an empty one."""
    if name and name not in set(Setup):
        raise UsageError(f"there is no set-up {name!r}: choose one of {', '.join(Setup)}")
    return [Setup(name)] if name else list(Setup)


def description(setup: Setup) -> str:
    return _PARTS[setup].what


def needs_zonewise(setup: Setup) -> bool:
    return bool(_PARTS[setup].install)


def lab_options(setup: Setup, nodes_per_zone: int, archives: Sequence[Path] = ()) -> LabOptions:
    stock = _PARTS[setup].stock_data_plane
    return LabOptions(
        zones=zone_names(_ZONES),
        nodes_per_zone=nodes_per_zone,
        kube_proxy=stock,
        controllers="*" if stock else "*,-endpointslice-controller",
        cluster_dns=True,
        images=tuple(map(str, archives)),
    )


def install(setup: Setup, lab: Lab, image: str, progress: Callable[[str], None]) -> None:
    """Returns when all of it is ready."""
    parts = _PARTS[setup]
    _kubectl(lab, "apply", f"--filename={MANIFESTS / 'kube-dns.yaml'}")
    if parts.stock_data_plane:
        progress("installing CoreDNS")
        _kubectl(lab, "apply", f"--filename={MANIFESTS / 'coredns.yaml'}")
        _kubectl(lab, "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=300s")
    if parts.install:
        progress(f"installing Zonewise: zonewise install {' '.join(parts.install)}")
        _zonewise(lab, "install", *parts.install, f"--image={image}", "--wait", f"--timeout={_READY_WITHIN_SECONDS}")


def _kubectl(lab: Lab, *arguments: str) -> None:
    _run([str(lab.binaries / "kubectl"), f"--kubeconfig={lab.node_kubeconfig}", *arguments])


def _zonewise(lab: Lab, *arguments: str) -> None:
    program = "from zonewise.cli.main import main; main()"
    _run([sys.executable, "-c", program, *arguments], {"KUBECONFIG": str(lab.node_kubeconfig)})


def _run(argv: list[str], environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, env={**os.environ, **(environ or {})}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ZonewiseError(f"`{' '.join(argv[-4:])}` failed: {(done.stderr or done.stdout).strip()[-600:]}")
