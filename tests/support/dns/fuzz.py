"""Packets that atheris makes up, guided by which code they reach: `make fuzz-dns`, or `RUNS=100000 make fuzz-dns`.

It begins with the packets that are kept; what is new goes to build/fuzz/dns, and the smallest set that reaches as much
is kept at the end. A packet that breaks what must hold is written to build/fuzz and ends the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["zonewise.dns"]):
    from support.dns import packets

FOUND = Path("build/fuzz/dns")
_AGAIN = FOUND.with_name("dns.sh").absolute()
"""What libFuzzer calls for itself when it merges: it takes us for a program of its own."""


def main() -> int:
    """libFuzzer never returns, so it runs in a process of its own; its words on the command line are libFuzzer's."""
    if "--inside" in sys.argv:
        sys.argv.remove("--inside")
        sys.argv[0] = str(_AGAIN)
        atheris.Setup(sys.argv, packets.must_hold)
        atheris.Fuzz()
    FOUND.mkdir(parents=True, exist_ok=True)
    _AGAIN.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} --inside "$@"\n')
    _AGAIN.chmod(0o755)
    for number, packet in enumerate([*packets.seeds(), *packets.kept()]):
        (FOUND / f"kept-{number}").write_bytes(packet)
    code = _run(*(sys.argv[1:] or [f"-runs={os.environ.get('RUNS', '10000000')}"]), str(FOUND))
    if code == 0:
        _keep_the_smallest_set()
    return code


def _run(*arguments: str) -> int:
    command = [sys.executable, __file__, "--inside", "-max_len=1024", f"-artifact_prefix={FOUND.parent}/", *arguments]
    return subprocess.run(command, check=False).returncode


def _keep_the_smallest_set() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        if _run("-merge=1", scratch, str(FOUND)) == 0:
            packets.keep({path.read_bytes() for path in Path(scratch).iterdir()})


if __name__ == "__main__":
    sys.exit(main())
