"""Commands that build images, run in a mount namespace of their own that has no other program's mounts.

A mount namespace begins with a copy of every mount, and a copy keeps a volume busy after it was unmounted elsewhere: a
build of minutes would block other labs and programs. So all that a build does not need is detached first. A command ends
when its caller is killed, and its mounts with it.

    python -m zonewise.lab.build.confined DIRECTORY COMMAND ARGUMENT...     within the new namespace
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from zonewise.lab.decide import image_plan
from zonewise.lab.nodes import mounts

_SYSTEM: Final = ("/bin", "/etc", "/lib", "/lib64", "/run", "/sbin", "/tmp", "/usr", "/var/lib", "/var/tmp")  # noqa: S108
"""Programs, certificates, name resolution, apt's lists and scratch space."""


def argv(directory: Path, *command: str) -> list[str]:
    """The command with all mounts that it needs: those of the system, and the directory's."""
    outer = ("setpriv", "--pdeathsig", "TERM", "--", "unshare", "--mount", "--propagation", "private", "--")
    return [*outer, sys.executable, "-m", __name__, str(directory), *command]


def main(directory: str, *command: str) -> None:
    needed = (directory, tempfile.gettempdir(), *_SYSTEM)
    for point in image_plan.foreign_mounts(Path("/proc/self/mountinfo").read_text(), needed):
        with suppress(mounts.MountError):  # it went with the one above it
            mounts.detach(Path(point))
    os.execvp(command[0], command)  # noqa: S606 - no shell is needed


if __name__ == "__main__":
    main(*sys.argv[1:])
