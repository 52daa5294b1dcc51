"""Stores of Ceph's daemons are made together, and none goes on alone when one fails."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from zonewise.lab.ceph import cluster
from zonewise.lab.ceph.cluster import CephError

SLOW = """#!/bin/sh
echo $$ >{mark}.new && mv {mark}.new {mark}
exec sleep 1000
"""
BAD = """#!/bin/sh
while ! test -e {mark}; do sleep 0.02; done
echo 'no room left'
exit 1
"""


def program(path: Path, text: str, mark: Path) -> list[str]:
    path.write_text(text.format(mark=mark))
    path.chmod(0o755)
    return [str(path)]


def test_store_that_cannot_be_made_ends_the_others(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    commands = [program(tmp_path / "bad", BAD, mark), program(tmp_path / "slow", SLOW, mark)]
    with pytest.raises(CephError, match="no room left"):
        cluster._run_together(tmp_path, commands)
    assert not Path("/proc", mark.read_text().strip()).exists()


def test_only_the_logs_of_a_failed_start_remain(tmp_path: Path) -> None:
    for name in ("log/mon.log", "mon/store.db", "admin.key", "run/mon"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    cluster.remove(tmp_path, keep_logs=True)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["log", "log/mon.log"]


def test_address_of_another_machine_has_no_free_port() -> None:
    with pytest.raises(CephError, match=r"no port of 192\.0\.2\.1 can be used"):
        cluster._free_port("192.0.2.1")


def test_taken_ports_are_given_up_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(cluster, "_FREE_PORTS", range(port, port + 1))
        with pytest.raises(CephError, match=f"no free port of 127.0.0.1 found between {port} and {port}"):
            cluster._free_port("127.0.0.1")
    assert cluster._free_port("127.0.0.1") == port
