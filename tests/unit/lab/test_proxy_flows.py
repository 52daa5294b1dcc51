"""The recording of kube-proxy's flow tables: what is missing or has changed is named."""

from pathlib import Path

import pytest

from zonewise.lab.build import proxy_flows
from zonewise.lab.build.binaries import BinariesError


def test_missing_recording_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_CACHE", str(tmp_path))
    with pytest.raises(BinariesError, match=r"kube-proxy-flows/.* run `make setup`"):
        proxy_flows.find()


def test_function_that_upstream_no_longer_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "package" / "proxier_test.go").write_text("func NewProxier() {}\n")
    with pytest.raises(BinariesError, match=r"proxier_test.go has 0 functions NewFakeProxier"):
        proxy_flows.copy_package(tmp_path / "package", tmp_path / "copy")
