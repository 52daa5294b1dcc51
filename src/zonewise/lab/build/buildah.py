"""Buildah with a storage of the lab's own: builds, imports and exports images without a registry.

Each call runs in a mount namespace of its own and with fresh run-time state, and ends when its caller is killed: a killed
build leaves neither a mount nor a process behind.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise.errors import ZonewiseError
from zonewise.lab.decide import image_plan

_LAST_LINES: Final = 20
_CONFINED: Final = ("setpriv", "--pdeathsig", "TERM", "--", "unshare", "--mount", "--propagation", "private", "--")


class ImageBuildError(ZonewiseError):
    pass


@dataclass(frozen=True, slots=True)
class Buildah:
    storage: Path
    log: Path
    """Output of the last build."""

    def import_root(self, archive: Path, name: str) -> str:
        """Make an image of a root file system's tar, unless it is there; returns its digest."""
        if not self._exists(name):
            container = self._run("from", "scratch").strip()
            self._run("add", "--quiet", container, str(archive), "/")
            self._run("commit", "--quiet", "--rm", "--timestamp=0", container, name)
        return self._run("inspect", "--type=image", "--format={{.FromImageDigest}}", name).strip()

    def build(self, arguments: Sequence[str], on_line: Callable[[str], None]) -> None:
        """Arguments begin with the command; its output goes to the log, and line by line to `on_line`."""
        last: deque[str] = deque(maxlen=_LAST_LINES)
        with tempfile.TemporaryDirectory(prefix="zonewise-buildah-") as state, self.log.open("w") as log:
            argv = self._argv(state, arguments)
            with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                try:
                    for line in process.stdout or ():
                        log.write(line)
                        last.append(line)
                        on_line(line)
                finally:
                    process.terminate()  # no effect once it ended
        if process.returncode:
            raise ImageBuildError(f"the image could not be built: {image_plan.failure(last)} (all of it: {self.log})")

    def export(self, name: str, archive: Path) -> None:
        """Write an archive as `docker save` does, and remove the image; steps of its build stay."""
        self._run("push", "--quiet", name, f"docker-archive:{archive}:{name}")
        self._run("rmi", name)

    def _exists(self, name: str) -> bool:
        return bool(self._run("images", "--quiet", "--filter", f"reference={name}").strip())

    def _run(self, *arguments: str) -> str:
        with tempfile.TemporaryDirectory(prefix="zonewise-buildah-") as state:
            done = subprocess.run(self._argv(state, arguments), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImageBuildError(f"`buildah {arguments[0]}` failed: {image_plan.failure(done.stderr.splitlines())}")
        return done.stdout

    def _argv(self, state: str, arguments: Sequence[str]) -> list[str]:
        return [*_CONFINED, "buildah", f"--root={self.storage}", f"--runroot={state}", *arguments]
