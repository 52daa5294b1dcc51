"""Coverage-guided fuzzing of DNS packets with atheris: `make fuzz-dns`, or `RUNS=100000 make fuzz-dns`.

It starts from the corpus of `packets`. New packets go to build/fuzz/dns, and at the end the smallest set with the same
coverage becomes the corpus. A packet that breaks an invariant is written to build/fuzz and ends the run.
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

GENERATED = Path("build/fuzz/dns")
_SCRIPT = GENERATED.with_name("dns.sh").absolute()
"""libFuzzer runs it as its own executable when it merges."""


def main() -> int:
    """libFuzzer never returns, so it runs in a child process. Command line arguments are libFuzzer's."""
    if "--inside" in sys.argv:
        sys.argv.remove("--inside")
        sys.argv[0] = str(_SCRIPT)
        atheris.Setup(sys.argv, packets.check)
        atheris.Fuzz()
    GENERATED.mkdir(parents=True, exist_ok=True)
    _SCRIPT.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} --inside "$@"\n')
    _SCRIPT.chmod(0o755)
    for number, packet in enumerate([*packets.seeds(), *packets.kept()]):
        (GENERATED / f"kept-{number}").write_bytes(packet)
    code = _run(*(sys.argv[1:] or [f"-runs={os.environ.get('RUNS', '10000000')}"]), str(GENERATED))
    if code == 0:
        _minimise_corpus()
    return code


def _run(*arguments: str) -> int:
    command = [
        sys.executable,
        __file__,
        "--inside",
        "-max_len=1024",
        f"-artifact_prefix={GENERATED.parent}/",
        *arguments,
    ]
    return subprocess.run(command, check=False).returncode


def _minimise_corpus() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        if _run("-merge=1", scratch, str(GENERATED)) == 0:
            packets.keep({path.read_bytes() for path in Path(scratch).iterdir()})


if __name__ == "__main__":
    sys.exit(main())
