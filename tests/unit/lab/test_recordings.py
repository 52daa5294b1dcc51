"""The recordings of other projects' tests: what is missing or has changed is named."""

from pathlib import Path
from types import ModuleType

import pytest
from bench.dns import coredns_cases

from zonewise.lab.build import go_copy, proxy_flows
from zonewise.lab.build.binaries import BinariesError


@pytest.mark.parametrize(
    ("recording", "directory"),
    [(proxy_flows, "kube-proxy-flows"), (coredns_cases, "coredns-cases")],
    ids=["flows", "DNS"],
)
def test_missing_recording_says_what_to_run(
    recording: ModuleType, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZONEWISE_CACHE", str(tmp_path))
    with pytest.raises(BinariesError, match=rf"{directory}/.* run `make setup`"):
        recording.find()


def test_copy_of_a_package_renames_what_is_replaced(tmp_path: Path) -> None:
    package, copied = tmp_path / "package", tmp_path / "copy"
    package.mkdir()
    copied.mkdir()
    (package / "handler.go").write_text("func (k K) ServeDNS(w W) {}\nfunc ServeDNSAgain() {}\n")
    go_copy.copy_package(package, copied, {"handler.go": ("ServeDNS",)})
    assert (copied / "handler.go").read_text() == "func (k K) upstreamServeDNS(w W) {}\nfunc ServeDNSAgain() {}\n"
    with pytest.raises(BinariesError, match=r"handler.go has 0 functions Answer: adapt"):
        go_copy.copy_package(package, copied, {"handler.go": ("Answer",)})
