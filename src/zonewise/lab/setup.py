"""What `make setup` runs once the virtual environment is there: system packages, then the lab's programs.

Quick when all is there. Without root it says which command somebody with root should run, and does the rest.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from zonewise.errors import ZonewiseError
from zonewise.lab import build
from zonewise.lab.binaries import DEFAULT_VERSION
from zonewise.lab.progress import Reporter

# Commands that namespace nodes and kube-proxy call, and the Debian package each comes in.
PACKAGES = {
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "tc": "iproute2",
}
_SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def missing_packages(commands: Iterable[str] = PACKAGES, searched: str = _SEARCHED) -> list[str]:
    return sorted({PACKAGES[command] for command in commands if shutil.which(command, path=searched) is None})


def run(version: str, reporter: Reporter) -> None:
    missing = missing_packages()
    if missing:
        _install(missing, reporter)
    build.ensure(version, reporter)


def _install(packages: list[str], reporter: Reporter) -> None:
    """Only namespace nodes need them: what can't be installed is said, and setup goes on."""
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        reporter.step(f"namespace nodes need {', '.join(packages)}: install them with your system's package tool")
    elif os.geteuid() != 0:
        reporter.step(f"namespace nodes need {', '.join(packages)}; with root: sudo {' '.join(command)}")
    else:
        reporter.step(f"installing {', '.join(packages)}")
        if not (_apt(command) or (_apt(["apt-get", "update"]) and _apt(command))):
            reporter.step(f"could not install them, namespace nodes will not work; see `{' '.join(command)}`")


def _apt(command: list[str]) -> bool:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return (
        subprocess.run(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zonewise.lab.setup", description="Prepare this machine for labs.")
    parser.add_argument(
        "--kube-version", default=DEFAULT_VERSION, help="the Kubernetes to build (default: %(default)s)"
    )
    reporter = Reporter(sys.stderr)
    try:
        run(parser.parse_args().kube_version, reporter)
    except ZonewiseError as error:
        reporter.close()
        sys.exit(f"setup: {error}")
    except KeyboardInterrupt:
        reporter.close()
        sys.exit("setup: interrupted; run it again to go on from here")


if __name__ == "__main__":
    main()
