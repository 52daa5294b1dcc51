"""kube-router in labs: what it is built from, and what it does on a node."""

import re
from pathlib import Path

import pytest

from zonewise.lab.build import kube_router
from zonewise.lab.build.binaries import BinariesError
from zonewise.lab.nodes import kube_router as on_nodes


def test_missing_build_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_CACHE", str(tmp_path))
    with pytest.raises(BinariesError, match=r"kube-router v.* is not built yet: `zonewise lab up --network-policies`"):
        kube_router.find()


def test_version_is_that_of_the_module() -> None:
    replaced = re.search(r"^replace \S+ => \S+ (\S+)$", (kube_router.SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert replaced is not None
    assert replaced[1] == kube_router.VERSION


def test_only_network_policies_are_switched_on() -> None:
    argv = on_nodes.argv(Path("/bin/kube-router"), Path("/lab/kube-router.kubeconfig"), "zone-a-1")
    running = {flag for flag in argv if flag.startswith("--run-")}
    assert running == {"--run-firewall=true", "--run-router=false", "--run-service-proxy=false"}
