"""The benchmarks' own command: what is missing is named in one line, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """On a machine without packages, and without a way to install them."""
    environ = {"PATH": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, env=environ, check=False, capture_output=True, text=True, cwd=ROOT)


def test_missing_package_of_a_benchmark_is_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "dns")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "bench-dns: needs dnsperf; install with `apt-get install dnsperf`"
    assert "Traceback" not in ended.stderr


def test_unknown_benchmark_is_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "dnss")
    assert ended.stderr.startswith("bench: there is no benchmark 'dnss'; there are ceph, disruption, dns")
