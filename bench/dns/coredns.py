"""CoreDNS: built once from its Go module into the cache, and run against a given API server.

`python -m bench.dns.coredns` builds it if it is missing; `make setup` does so for the tests that compare with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from zonewise.lab import paths
from zonewise.lab.build.build import GoToolchain

MODULE = Path(__file__).parent / "coredns"


def ensure() -> Path:
    """The binary. Building it takes some minutes; a lock keeps two processes from building at once."""
    sources = b"".join(sorted(path.read_bytes() for path in MODULE.iterdir()))
    binary = paths.cache_root() / "coredns" / hashlib.sha256(sources).hexdigest()[:12]
    if binary.exists():
        return binary
    binary.parent.mkdir(parents=True, exist_ok=True)
    with binary.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _build(binary)
    return binary


def _build(binary: Path) -> None:
    print("setup: building CoreDNS for comparison with our DNS server: some minutes, once", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
        built = Path(scratch, "coredns")
        GoToolchain(MODULE).run(["build", "-trimpath", "-ldflags=-s -w", "-o", str(built), "."])
        built.rename(binary)


class CoreDns:
    def __init__(
        self, kubeconfig: Path, port: int, *, cache: bool, directory: Path, cpus: str = "", zonal: bool = True
    ) -> None:
        corefile = directory / "Corefile"
        corefile.write_text(
            f""".:{port} {{
    bind 127.0.0.1
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
        {"zonal" if zonal else ""}
        fallthrough in-addr.arpa ip6.arpa
    }}
    {"cache 30" if cache else ""}
    loadbalance
}}
"""
        )
        pin = ["taskset", "-c", cpus] if cpus else []
        self.port = port
        self._log = (directory / "coredns.log").open("w")
        self.process = subprocess.Popen(
            [*pin, ensure(), "-conf", corefile, "-quiet"], stdout=self._log, stderr=subprocess.STDOUT
        )
        time.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        self._log.close()


if __name__ == "__main__":
    ensure()
