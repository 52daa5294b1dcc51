"""Commands that build images, run in a mount namespace of their own that has no other program's mounts.

A copy of another program's mount would keep its volume busy for the minutes of a build. So all that a build does not need is
detached first. A command ends when its caller is killed, and its mounts with it.

    python -m zonewise.lab.build.confined DIRECTORY COMMAND ARGUMENT...     within the new namespace
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zonewise.lab.nodes import mounts


def argv(directory: Path, *command: str) -> list[str]:
    """The command with all mounts that it needs: those of the system, and the directory's."""
    outer = ("setpriv", "--pdeathsig", "TERM", "--", "unshare", "--mount", "--propagation", "private", "--")
    return [*outer, sys.executable, "-m", __name__, str(directory), *command]


def main(directory: str, *command: str) -> None:
    mounts.detach_foreign([directory])
    os.execvp(command[0], command)  # noqa: S606 - no shell is needed


if __name__ == "__main__":
    main(*sys.argv[1:])
