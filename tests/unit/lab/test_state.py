import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zonewise.errors import UsageError
from zonewise.lab import paths, state, status
from zonewise.lab.nodes import node_programs
from zonewise.lab.state import BusyError, Lab, LabOptions, LabPhase, NoLabError, OutdatedError


@pytest.fixture(autouse=True)
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZONEWISE_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def make(name: str, **changes: object) -> Lab:
    directory = state.directory_of(name)
    directory.mkdir(parents=True)
    options = LabOptions(zones=("zone-a",), nodes_per_zone=1, kube_proxy=True)
    fields = {"options": options, "runtime": Path("/containerd"), **changes}
    lab = Lab(name=name, directory=directory, slot=3, binaries=Path("/bin"), **fields)  # type: ignore[arg-type]
    lab.save()
    return lab


@pytest.mark.parametrize("name", ["", "Upper", "-dash", "dash-", "dot.ted", "../up", "a" * 31])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="lower-case letters"):
        state.directory_of(name)


def test_lab_record_round_trips() -> None:
    lab = make("one", phase=LabPhase.READY)
    assert state.find("one") == lab
    assert state.get("one").kube_proxy == Path("/bin/kube-proxy")
    assert state.names() == ["one"]


def test_programs_of_nodes_are_those_that_were_asked_for() -> None:
    plain = make("plain", options=LabOptions(zones=("zone-a",), nodes_per_zone=1))
    assert node_programs.unit_names(plain) == ("containerd", "kubelet")
    full = make("full", kube_router=Path("/kube-router"))
    assert node_programs.unit_names(full) == ("containerd", "kubelet", "kube-proxy", "kube-router")


def test_labs_are_listed_with_phase_and_directory() -> None:
    lab = make("one", phase=LabPhase.READY)
    state.directory_of("half").mkdir()
    assert status.listed() == (
        status.ListedLab("half", None, str(state.directory_of("half"))),
        status.ListedLab("one", LabPhase.READY, str(lab.directory)),
    )


def test_incomplete_and_unknown_labs_are_not_found() -> None:
    assert state.find("never") is None
    make("broken").directory.joinpath("lab.json").write_text('{"name": ')
    assert state.find("broken") is None


def test_lab_that_is_not_up_error_tells_what_to_do() -> None:
    make("other", phase=LabPhase.READY)
    make("half")
    with pytest.raises(NoLabError, match=r"start 'half' with .* --name half`, or choose .* --name: other$"):
        state.get("half")


def test_lab_of_an_older_release_is_named_and_can_only_be_removed() -> None:
    lab = make("old", phase=LabPhase.READY, runtime=None)
    record = lab.directory / "lab.json"
    record.write_text(record.read_text().replace('"zones"', '"node_kind": "namespace",\n"zones"'))
    assert state.find("old") == lab
    with pytest.raises(OutdatedError, match=r"remove it with `zonewise lab down --name old`"):
        state.get("old")
    with pytest.raises(OutdatedError):
        state.require_current(lab)
    assert status.processes_of(lab) == []


def test_lab_without_nodes_needs_no_container_runtime() -> None:
    make("kwok", phase=LabPhase.READY, runtime=None, options=LabOptions(zones=("zone-a",), kwok_nodes=3))
    assert state.get("kwok").runtime is None


def test_second_lock_of_a_lab_raises_busy() -> None:
    with (
        state.locked("one"),
        pytest.raises(BusyError, match=f"'one' is being started, stopped or shaped by process {os.getpid()}"),
        state.locked("one"),
    ):
        pass
    with state.locked("one"), state.locked("two"):
        pass


def test_lock_waits_for_its_holder() -> None:
    order: list[str] = []

    def wait() -> None:
        with state.locked("one", 60):
            order.append("second")

    with ThreadPoolExecutor(1) as thread:
        with state.locked("one"):
            waiting = thread.submit(wait)
            time.sleep(0.1)
            order.append("first")
        waiting.result()
    assert order == ["first", "second"]


def test_is_held_reports_the_lock() -> None:
    assert not state.is_held("one")
    with state.locked("one"):
        assert state.is_held("one")
        assert state.is_held("one")
        make("one")
    assert not state.is_held("one")


def test_lock_file_is_removed_with_the_lab() -> None:
    with state.locked("one"):
        lab = make("one")
    assert state.directory_of("one").with_name("one.lock").exists()
    with state.locked("one"):
        lab.directory.joinpath("lab.json").unlink()
        lab.directory.rmdir()
    assert not paths.state_root().exists()


def test_unusable_state_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("ZONEWISE_STATE", str(file))
    with pytest.raises(UsageError, match=r"file/labs can't be read \(Not a directory\): set ZONEWISE_STATE"):
        state.names()
