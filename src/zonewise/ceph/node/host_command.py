"""One door for the programs that the node calls: an argument list, a deadline, and what was said when it failed.

Arguments are visible to every user of the machine, so secrets never stand in them: they go through files that only
root can read. A program that hangs in the kernel, as an unmount of a volume whose cluster is away does, can't be ended;
it is left behind so that the call that needed it can answer.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping

from zonewise.errors import ZonewiseError

TIMEOUT_SECONDS = 60.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_LONGEST_COMPLAINT = 400


class CommandError(ZonewiseError):
    def __init__(self, program: str, code: int, said: str) -> None:
        super().__init__(f"{program} failed with code {code}: {shortened(said) or 'it said nothing'}")
        self.code = code
        self.said = said


class CommandTimeoutError(ZonewiseError):
    def __init__(self, program: str, seconds: float) -> None:
        super().__init__(f"{program} did not end within {seconds:g} s: is the Ceph cluster reachable from this node?")


def run(
    *argv: str, accept: Collection[int] = (0,), timeout_seconds: float = TIMEOUT_SECONDS, directory: str | None = None
) -> tuple[int, str]:
    """Its exit code, one of those accepted, and what it wrote."""
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


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours for programs: where they are found, what language they speak, and nothing else of the caller's."""
    return {**_ENVIRONMENT, **({"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}), **(more or {})}


def shortened(text: str) -> str:
    """The end of a complaint in one line."""
    return " ".join(text.split())[-_LONGEST_COMPLAINT:]


def _abandon(process: subprocess.Popen[str]) -> None:
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = -9  # in the kernel, where no signal reaches it: nobody can wait for it
