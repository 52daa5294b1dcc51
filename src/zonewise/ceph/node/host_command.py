"""Host programs (mount, mkfs, rbd, ...): run with an argument list and a timeout, errors with their output.

Arguments are visible to every user of the machine, so secrets are passed in files that only root can read. A program
that hangs in the kernel, for example an unmount while the cluster is unreachable, can't be killed; it is left behind so
that the call can return.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from typing import Final

from zonewise.errors import ZonewiseError

TIMEOUT_SECONDS: Final = 60.0
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_MAX_OUTPUT: Final = 400


class CommandError(ZonewiseError):
    def __init__(self, program: str, code: int, output: str) -> None:
        super().__init__(f"{program} failed with code {code}: {shortened(output) or 'no output'}")
        self.code = code
        self.output = output


class CommandTimeoutError(ZonewiseError):
    def __init__(self, program: str, seconds: float) -> None:
        super().__init__(f"{program} did not exit within {seconds:g} s: check that this node reaches the Ceph cluster")


def run(
    *argv: str, accept: Collection[int] = (0,), timeout_seconds: float = TIMEOUT_SECONDS, directory: str | None = None
) -> tuple[int, str]:
    """Exit code, one of those accepted, and output."""
    process = subprocess.Popen(
        argv,
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _abandon(process)
        raise CommandTimeoutError(argv[0], timeout_seconds) from None
    if process.returncode not in accept:
        raise CommandError(argv[0], process.returncode, output)
    return process.returncode, output


def environment() -> dict[str, str]:
    """Environment of programs: PATH, locale and HOME only."""
    return {**_ENVIRONMENT, **({"HOME": os.environ["HOME"]} if "HOME" in os.environ else {})}


def shortened(text: str) -> str:
    """The end of a program's output, in one line."""
    return " ".join(text.split())[-_MAX_OUTPUT:]


def _abandon(process: subprocess.Popen[str]) -> None:
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = -9  # it hangs in the kernel: do not wait for it again
