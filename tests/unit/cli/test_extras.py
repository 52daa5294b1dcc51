"""Commands without the packages of the extras: one line that says what to install, and the others need none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unit.cli.test_errors import CLUSTER_COMMANDS

PROGRAM = """
import sys
extras = {"cephfs", "dask", "distributed", "google", "grpc", "grpc_tools", "numba", "numpy", "rados", "rbd"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from zonewise.cli.main import main
main(sys.argv[1:])
"""
DRIVER = ["--orchestrator", "none", "--domain", "zone=a", "--endpoint"]
NEEDING = {
    "csi controller": (["csi", "controller", *DRIVER[:2], "--endpoint"], "`grpc`: pip install 'zonewise[csi]'"),
    "csi node": (["csi", "node", *DRIVER], "`grpc`: pip install 'zonewise[csi]'"),
    "csi journal": (["csi", "journal"], "`rados`, which PyPI does not have: apt install python3-cephfs python3-rados"),
    "csi doctor": (["csi", "doctor"], "`rados`, which PyPI does not have: apt install python3-cephfs python3-rados"),
    "simulate": (["simulate", "small"], "`numpy`: pip install 'zonewise[simulator]'"),
    "simulate --dask": (["simulate", "--dask", "tcp://127.0.0.1:1"], "`distributed`: pip install 'zonewise[dask]'"),
}


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("arguments", "package"), NEEDING.values(), ids=NEEDING)
def test_missing_extra_is_named_in_one_line(tmp_path: Path, arguments: list[str], package: str) -> None:
    config = tmp_path / "csi.json"
    cluster = {
        "clusterID": "c",
        "monitors": ["127.0.0.1:1"],
        "userID": "u",
        "keyFile": "/dev/null",
        "rbd": {"pool": "p"},
    }
    config.write_text(json.dumps({"version": 2, "clusters": [cluster]}))
    if arguments[-1] == "--endpoint":
        arguments = [*arguments, f"unix://{tmp_path}/csi.sock"]
    if arguments[0] == "csi":
        arguments = [*arguments, "--config", str(config)]
    result = run(arguments)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith("zonewise: this command needs ")
    assert package in result.stderr


def test_other_commands_need_no_extra(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    servers = [["controller"], ["dns"], ["proxy"], ["webhook", "--url", "https://localhost"], ["dashboard"]]
    for arguments in [[*name.split(), *more] for name, more in CLUSTER_COMMANDS.items()] + servers:
        result = run([*arguments, "--kubeconfig", nowhere])
        assert nowhere in result.stderr, (arguments, result.stderr)
        assert result.stderr.count("\n") == 1
