"""csi-sanity, the conformance test of CSI drivers: built once from its Go module into the cache.

`python -m zonewise.lab.build.csi_sanity` builds it, unless it is there: `make setup` does. A cold build took two minutes of CPU time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from zonewise.lab import paths
from zonewise.lab.build.binaries import BinariesError
from zonewise.lab.build.build import GO_HOME

VERSION = "v5.6.0"
_PACKAGE = f"github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@{VERSION}"


def ensure() -> Path:
    """The binary, built now unless it is there. Two at once wait for each other."""
    binary = paths.cache_root() / "csi-sanity" / VERSION
    if binary.exists():
        return binary
    binary.parent.mkdir(parents=True, exist_ok=True)
    with binary.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _build(binary)
    return binary


def _build(binary: Path) -> None:
    go = shutil.which("go") or shutil.which(GO_HOME / "bin" / "go")
    if go is None:
        raise BinariesError("Go is needed to build csi-sanity: install it from https://go.dev/dl/ and put it into PATH")
    print(f"setup: building csi-sanity {VERSION}: some minutes, once", file=sys.stderr)  # noqa: T201 - part of make setup
    with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
        done = subprocess.run(
            [go, "install", "-trimpath", "-ldflags=-s -w", _PACKAGE],
            env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOBIN": scratch},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BinariesError(f"csi-sanity could not be built: {done.stderr.strip()[-400:]}")
        Path(scratch, "csi-sanity").rename(binary)


if __name__ == "__main__":
    ensure()
