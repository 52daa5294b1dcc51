"""The lab's kubectl, as an administrator of the lab's cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from zonewise.errors import ZonewiseError
from zonewise.lab.state import Lab


def run(lab: Lab, *arguments: str, text: str | None = None) -> str:
    """Its output; raises ZonewiseError with its last words. `text` is its standard input."""
    return execute([str(lab.binaries / "kubectl"), f"--kubeconfig={lab.node_kubeconfig}", *arguments], text=text)


def execute(argv: Sequence[str], environ: dict[str, str] | None = None, text: str | None = None) -> str:
    done = subprocess.run(
        argv, env={**os.environ, **(environ or {})}, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ZonewiseError(f"`{' '.join(argv[-4:])}` failed: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout
