"""`make setup`, after the virtual environment: system packages, then the lab's binaries.

Fast when all is installed. Without root it prints the command to run as root, and does the rest.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from zonewise.errors import ZonewiseError
from zonewise.lab.build import build, kube_router, node_runtime, proxy_flows
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.decide import image_plan
from zonewise.lab.progress import ProgressReporter

# Commands that the network, kube-proxy and the storage driver call, and the Debian package of each.
PACKAGES = {
    "ceph": "ceph-common",
    "ceph-fuse": "ceph-fuse",
    "ceph-mds": "ceph-mds",
    "ceph-mgr": "ceph-mgr",
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "nft": "nftables",
    "nsenter": "util-linux",
    "qemu-img": "qemu-utils",
    "qemu-storage-daemon": "qemu-system-common",
    "setfattr": "attr",
    "setpriv": "util-linux",
    "tc": "iproute2",
}
TEST_PACKAGES = {
    "cc": "build-essential",  # libraries that tests preload
    "chromium": "chromium",  # of the tests of the page
}
# Files (below /) that stand for packages without a command: the bindings, and what lets qemu read RBD images.
LIBRARIES = {
    "usr/lib/python3/dist-packages/cephfs.*.so": "python3-cephfs",
    "usr/lib/python3/dist-packages/rados.*.so": "python3-rados",
    "usr/lib/python3/dist-packages/rbd.*.so": "python3-rbd",
    "usr/lib/*/qemu/block-rbd.so": "qemu-block-extra",
}
# Of nodes, beside containerd (`node_runtime`): commands, and files below /.
NODE_PACKAGES = {
    "busybox": "busybox-static",
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
NODE_FILES = {"usr/lib/cni/ptp": "containernetworking-plugins"}
# Of nodes where network policies are enforced (`kube_router`).
POLICY_PACKAGES = {"ipset": "ipset", "iptables": "iptables"}
# Of container images (`container_images`).
IMAGE_PACKAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "setpriv": "util-linux", "unshare": "util-linux"}
IMAGE_FILES = {image_plan.KEYRING.removeprefix("/"): "debian-archive-keyring"}  # Ubuntu comes without
_LOCK_SECONDS = 120  # an upgrade in the background may be at work
_SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def missing_packages(packages: Mapping[str, str] = PACKAGES, searched: str = _SEARCHED) -> list[str]:
    return sorted({package for command, package in packages.items() if shutil.which(command, path=searched) is None})


def missing_libraries(patterns: Mapping[str, str] = LIBRARIES) -> list[str]:
    return sorted({package for pattern, package in patterns.items() if not any(Path("/").glob(pattern))})


def link_bindings(site: Path, system: Path = Path("/usr/lib/python3/dist-packages")) -> list[str]:
    """Ceph's bindings come with the system, not from PyPI: link them into a virtual environment, and nothing else of the
    system's. The name of each file says for which Python it is; another one goes without.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    linked = []
    for name in ("rados", "rbd", "cephfs"):
        source, target = system / f"{name}{suffix}", site / f"{name}{suffix}"
        if source.exists() and sys.prefix != sys.base_prefix:
            target.unlink(missing_ok=True)
            target.symlink_to(source)
            linked.append(name)
    return linked


def run(version: str, reporter: ProgressReporter, packages: Mapping[str, str] = PACKAGES) -> None:
    missing = sorted({*missing_packages(packages), *missing_libraries()})
    if missing:
        install(missing, "nodes and storage", reporter)
    link_bindings(Path(sysconfig.get_path("platlib")))
    build.ensure(version, reporter)


def prepare_nodes(reporter: ProgressReporter) -> None:
    """What only nodes need, when they are first asked for."""
    missing = missing_for_nodes()
    if missing:
        install(missing, "nodes", reporter)
    node_runtime.ensure(reporter)


def missing_for_nodes(*, network_policies: bool = False) -> list[str]:
    commands = NODE_PACKAGES | (POLICY_PACKAGES if network_policies else {})
    return sorted({*missing_packages(commands), *missing_libraries(NODE_FILES), *_missing_static()})


def _missing_static() -> list[str]:
    """A busybox that needs libraries is no content for an image."""
    program = shutil.which("busybox", path=_SEARCHED)
    return [NODE_PACKAGES["busybox"]] if program and not is_static(Path(program)) else []


def is_static(program: Path) -> bool:
    """Whether no dynamic linker is named, as it is near the start of a file that needs one; see elf(5), PT_INTERP."""
    with program.open("rb") as file:
        return re.search(rb"/ld-(linux|musl)", file.read(8192)) is None


def prepare_network_policies(reporter: ProgressReporter) -> None:
    """What only nodes that enforce network policies need, when one is first asked for."""
    missing = missing_packages(POLICY_PACKAGES)
    if missing:
        install(missing, "network policies", reporter)
    kube_router.ensure(reporter)


def prepare_images(reporter: ProgressReporter) -> None:
    """What only building container images needs, when one is first asked for."""
    missing = sorted({*missing_packages(IMAGE_PACKAGES), *missing_libraries(IMAGE_FILES)})
    if missing:
        install(missing, "container images", reporter)


def install(packages: list[str], purpose: str, reporter: ProgressReporter) -> None:
    """Only `purpose` needs them: a package that can't be installed is reported, and the caller continues."""
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        reporter.step(f"{purpose}: needs {', '.join(packages)}; install them with your system's package tool")
    elif os.geteuid() != 0:
        reporter.step(f"{purpose}: needs {', '.join(packages)}; with root: sudo {' '.join(command)}")
    else:
        reporter.step(f"installing {', '.join(packages)}")
        problem = _apt(command)
        if problem:
            problem = _apt(["apt-get", "update"]) or _apt(command)
        if problem:
            reporter.step(f"{purpose}: could not install them, and will not work: {problem}; see `{' '.join(command)}`")


def _apt(command: Sequence[str]) -> str:
    """Empty when it succeeded, otherwise the last line of what it printed."""
    program, *arguments = command
    done = subprocess.run(
        [program, "-o", f"DPkg::Lock::Timeout={_LOCK_SECONDS}", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return apt_problem(done.stdout) or f"it ended with {done.returncode}" if done.returncode else ""


def apt_problem(output: str) -> str:
    """Its last error, or else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E: ")]
    return (errors or lines or [""])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m zonewise.lab.build.setup", description="Prepare this machine for labs."
    )
    parser.add_argument(
        "--kube-version", default=DEFAULT_VERSION, help="the Kubernetes to build (default: %(default)s)"
    )
    parser.add_argument("--tests", action="store_true", help="also install what only the tests need")
    arguments = parser.parse_args()
    reporter = ProgressReporter(sys.stderr)
    try:
        run(arguments.kube_version, reporter, PACKAGES | TEST_PACKAGES if arguments.tests else PACKAGES)
        if arguments.tests:
            prepare_nodes(reporter)
            prepare_network_policies(reporter)
            proxy_flows.ensure(reporter)
            prepare_images(reporter)
    except ZonewiseError as error:
        reporter.close()
        sys.exit(f"setup: {error}")
    except KeyboardInterrupt:
        reporter.close()
        sys.exit("setup: interrupted; run it again to continue")


if __name__ == "__main__":
    main()
