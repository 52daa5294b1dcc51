import subprocess
import sysconfig
from pathlib import Path

import pytest

from zonewise.lab.build import setup

ROOT = Path(__file__).parents[3]


def test_missing_packages_are_listed_once(tmp_path: Path) -> None:
    commands = {name: setup.PACKAGES[name] for name in ("conntrack", "ip", "nft", "nsenter", "setpriv", "tc")}
    assert setup.missing_packages(commands, str(tmp_path)) == ["conntrack", "iproute2", "nftables", "util-linux"]
    for command in ("ip", "tc", "nft"):
        (tmp_path / command).touch(mode=0o755)
    assert setup.missing_packages(commands, str(tmp_path)) == ["conntrack", "util-linux"]


@pytest.mark.parametrize(
    ("target", "needed"),
    [("up", False), ("test", True), ("test-cluster", True), ("test-network", True), ("bench", True)],
)
def test_only_tests_and_benchmarks_build_what_only_they_need(target: str, needed: bool) -> None:
    command = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    for step in ("bench.dns.coredns", "zonewise.lab.build.csi_sanity", "zonewise.lab.build.setup --tests"):
        assert (step in said) is needed, step


def test_missing_libraries_are_detected_by_file(tmp_path: Path) -> None:
    (tmp_path / "here.so").touch()
    below = str(tmp_path).removeprefix("/")
    assert setup.missing_libraries({f"{below}/here.*": "there", f"{below}/gone.*": "missing"}) == ["missing"]


def test_only_bindings_of_this_python_are_linked(tmp_path: Path) -> None:
    system, site = tmp_path / "system", tmp_path / "site"
    system.mkdir()
    site.mkdir()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in (f"rados{suffix}", "rbd.cpython-39-x86_64-linux-gnu.so", f"yaml{suffix}"):
        (system / name).touch()
    assert setup.link_bindings(site, system) == ["rados"]
    assert setup.link_bindings(site, system) == ["rados"]  # again, as each `make setup` does
    assert [path.name for path in site.iterdir()] == [f"rados{suffix}"]
