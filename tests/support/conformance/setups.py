"""Set-ups under test: what serves Services, DNS and EndpointSlices, and how it is installed in a lab."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from support.conformance import kubectl, storage
from support.conformance.sidecars import Sidecars
from support.conformance.storage import StorageKind
from zonewise.errors import UsageError
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.state import Lab, LabOptions

MANIFESTS: Final = Path(__file__).parent / "manifests"
_ZONES: Final = 3
_READY_WITHIN_SECONDS: Final = 300


class Setup(StrEnum):
    STOCK = "stock"
    OURS = "ours"
    OVERLAY = "overlay"
    RBD = "rbd"
    CEPHFS = "cephfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    what: str
    stock_data_plane: bool
    """kube-proxy, CoreDNS and the EndpointSlice controller."""
    install: tuple[str, ...] = ()
    """Arguments of `zonewise install`; none leaves Zonewise out."""
    storage: StorageKind | None = None


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
    Setup.RBD: _Parts(
        what="the Ceph CSI driver with the real sidecars, volumes of RBD",
        stock_data_plane=True,
        storage=StorageKind.RBD,
    ),
    Setup.CEPHFS: _Parts(
        what="the Ceph CSI driver with the real sidecars, volumes of CephFS",
        stock_data_plane=True,
        storage=StorageKind.CEPHFS,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallInputs:
    """What set-ups install; each is built only if one needs it."""

    zonewise: str = ""
    """The name of its image."""
    csi: str = ""
    sidecars: Sidecars | None = None


def choose(name: str, offered: Sequence[Setup]) -> list[Setup]:
    """The set-up of this name; all that the tier offers for an empty one."""
    if name and name not in offered:
        raise UsageError(f"there is no set-up {name!r} in this tier: choose one of {', '.join(offered)}")
    return [Setup(name)] if name else list(offered)


def description(setup: Setup) -> str:
    return _PARTS[setup].what


def needs_zonewise(setup: Setup) -> bool:
    return bool(_PARTS[setup].install)


def storage_of(setup: Setup) -> StorageKind | None:
    return _PARTS[setup].storage


def lab_options(
    setup: Setup, nodes_per_zone: int, archives: Sequence[Path] = (), *, network_policies: bool = False
) -> LabOptions:
    stock = _PARTS[setup].stock_data_plane
    return LabOptions(
        zones=zone_names(_ZONES),
        nodes_per_zone=nodes_per_zone,
        kube_proxy=stock,
        network_policies=network_policies,
        controllers="*" if stock else "*,-endpointslice-controller",
        cluster_dns=True,
        ceph=storage_of(setup) is not None,
        images=tuple(map(str, archives)),
    )


def install(setup: Setup, lab: Lab, inputs: InstallInputs, progress: Callable[[str], None]) -> None:
    """Returns when all of it is ready."""
    parts = _PARTS[setup]
    kubectl.run(lab, "apply", f"--filename={MANIFESTS / 'kube-dns.yaml'}")
    if parts.stock_data_plane:
        progress("installing CoreDNS")
        kubectl.run(lab, "apply", f"--filename={MANIFESTS / 'coredns.yaml'}")
        kubectl.run(lab, "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=300s")
    if parts.install:
        progress(f"installing Zonewise: zonewise install {' '.join(parts.install)}")
        image, timeout = f"--image={inputs.zonewise}", f"--timeout={_READY_WITHIN_SECONDS}"
        _zonewise(lab, "install", *parts.install, image, "--wait", timeout)
    if parts.storage is not None and inputs.sidecars is not None:
        progress("installing the CSI driver, its sidecars and the snapshot controller")
        storage.install(lab, inputs.csi, inputs.sidecars)


def _zonewise(lab: Lab, *arguments: str) -> None:
    program = "from zonewise.cli.main import main; main()"
    kubectl.execute([sys.executable, "-c", program, *arguments], {"KUBECONFIG": str(lab.node_kubeconfig)})
