"""Releases to run side by side: the present tree, and 0.1 as this repository's history has it.

0.1 runs from its own sources with this environment's libraries, which are those it was released with.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from support.lab.machine import ZONEWISE

ROOT = Path(__file__).parents[2]
FIRST_COMMIT = "39d7223c7ac8c0cf79c8dbb4d9647761d2e36e1d"
RECORDED = ROOT / "tests/recorded/0.1"
"""What 0.1 stored, for a clone without its history."""
_SPEC = Path("src/zonewise/ceph/spec")
_LAUNCHER = """\
import os, sys
sources = os.path.join(os.path.dirname(os.path.abspath(__file__)), "src")
sys.path.insert(0, sources)
os.environ["PYTHONPATH"] = sources
from zonewise.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Release:
    """`command` is a Python program with the arguments of `zonewise`; `manifests` has its definition of budgets."""

    name: str
    command: Path
    manifests: Path


PRESENT = Release("this tree", ZONEWISE, ROOT / "deploy")


def has_first_release() -> bool:
    git = ["git", "-C", str(ROOT), "cat-file", "-e", f"{FIRST_COMMIT}^{{commit}}"]
    try:
        return subprocess.run(git, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def first_release(directory: Path) -> Release | None:
    """None in a clone without that history, such as a shallow one."""
    if not has_first_release():
        return None
    git = ["git", "-C", str(ROOT), "archive", FIRST_COMMIT, "src", "deploy"]
    archive = subprocess.run(git, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(directory, filter="tar")
    assert (directory / _SPEC / "csi.proto").read_bytes() == (ROOT / _SPEC / "csi.proto").read_bytes()
    shutil.copy(ROOT / _SPEC / "csi_pb2.py", directory / _SPEC)  # generated when a wheel is built
    launcher = directory / "zonewise"
    launcher.write_text(_LAUNCHER)
    return Release("0.1", launcher, directory / "deploy")
