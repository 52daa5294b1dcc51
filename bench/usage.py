"""Time and memory of one command, as the kernel counts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, NamedTuple

# A new process starts with the peak of the one that called vfork, which may be a test's of a gigabyte. So a small one starts it.
_MEASURE: Final = """
import json, os, subprocess, sys, time
begin = time.monotonic()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
seconds = time.monotonic() - begin
measured = [process.returncode, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]
os.write(int(sys.argv[1]), json.dumps(measured).encode())
"""


class Usage(NamedTuple):
    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float


def of(argv: Sequence[str], *, stdout: IO[Any] | None = None, env: Mapping[str, str] | None = None) -> Usage:
    read, write = os.pipe()
    with os.fdopen(read) as result:
        try:
            command = [sys.executable, "-I", "-S", "-c", _MEASURE, str(write), *argv]
            subprocess.run(command, stdout=stdout, env=env, pass_fds=[write], check=True)
        finally:
            os.close(write)
        return Usage(*json.load(result))
