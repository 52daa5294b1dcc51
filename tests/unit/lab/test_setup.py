import io
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from zonewise.lab.build import setup
from zonewise.lab.progress import ProgressReporter

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


APT = """#!/bin/sh
echo "$*" >>{calls}
echo 'Reading package lists...'
echo 'E: Unable to locate package nothing'
echo 'W: a warning'
exit {code}
"""


@pytest.mark.parametrize(("code", "calls"), [(0, ["install"]), (100, ["install", "update"])])
def test_failed_install_names_the_cause_and_waits_for_other_package_tools(
    code: int, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt-get").write_text(APT.format(calls=tmp_path / "calls", code=code))
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    text = io.StringIO()
    setup.install(["nothing"], "nodes", ProgressReporter(text))
    called = (tmp_path / "calls").read_text().splitlines()
    assert [line.split()[2] for line in called] == calls
    assert all(line.startswith("-o DPkg::Lock::Timeout=120 ") for line in called)
    assert ("will not work: E: Unable to locate package nothing; see" in text.getvalue()) is (code != 0)


@pytest.mark.parametrize(
    ("output", "problem"),
    [("", ""), ("one\ntwo \n\n", "two"), ("E: first\nE: last\nW: a warning\n", "E: last")],
)
def test_problem_of_apt_is_its_last_error_or_else_its_last_line(output: str, problem: str) -> None:
    assert setup.apt_problem(output) == problem


@pytest.mark.parametrize(
    ("linker", "static"),
    [(b"", True), (b"/lib64/ld-linux-x86-64.so.2", False), (b"/lib/ld-musl-x86_64.so.1", False)],
)
def test_program_without_a_dynamic_linker_is_static(linker: bytes, static: bool, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x7fELF" + bytes(500) + linker + bytes(500))
    assert setup.is_static(tmp_path / "program") is static
