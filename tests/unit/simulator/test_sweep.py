"""Sweeps give the same table when interrupted and resumed, in processes and on Dask."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from distributed import LocalCluster

from zonewise.errors import UsageError
from zonewise.routing.algorithms import Algorithm
from zonewise.simulator.checkpoint import file_for, sweep
from zonewise.simulator.decide.datasets import Dataset, DatasetPart
from zonewise.simulator.decide.inputs import NamedInput
from zonewise.simulator.decide.results import ResultTable
from zonewise.simulator.decide.tally import tally
from zonewise.simulator.decide.tasks import Contestant, Partial, Rules, Task, dataset_tasks, own_tasks
from zonewise.simulator.runners import Runner, in_processes, on_dask, one_by_one

PATIENCE_SECONDS = 200
TASKS = 50
RULES = Rules((Contestant("local", Algorithm.LOCAL), Contestant("local-opt", Algorithm.LOCAL_OPT)))
OWN = [NamedInput(f"row {n}", ("a", "b", "c"), (1 + n % 7, 2, 3), (n, n % 11, 1 + n % 5)) for n in range(900)]
FEW = Dataset("few", "", (DatasetPart(((1, 2, 3), (2, 2, 5), (4, 1, 1)), range(9), ordered=False),))


def without_clock(table: ResultTable) -> ResultTable:
    rows = (msgspec.structs.replace(row, cpu_seconds=0.0) for row in table.rows)
    return msgspec.structs.replace(table, rows=tuple(rows))


def run(tasks: Sequence[Task], by: Runner, directory: Path) -> ResultTable:
    partials = sweep(tasks, by, file_for(tasks, directory), lambda _: None)
    return without_clock(tally("own", "", RULES, partials))


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster.scheduler_address


@pytest.mark.parametrize("tasks", [own_tasks(OWN, RULES), dataset_tasks(FEW, RULES)], ids=["own", "chunks"])
def test_every_runner_gives_the_same_table(tasks: list[Task], dask_address: str, tmp_path: Path) -> None:
    alone = run(tasks, one_by_one, tmp_path)
    assert run(tasks, in_processes(2), tmp_path) == alone
    assert run(tasks, on_dask(dask_address), tmp_path) == alone
    assert not list(tmp_path.iterdir()), "a finished sweep leaves no file"


def test_unreachable_scheduler_is_named() -> None:
    with pytest.raises(UsageError, match=re.escape("tcp://127.0.0.1:1")):
        list(on_dask("tcp://127.0.0.1:1", timeout_seconds=1)([]))


@pytest.mark.parametrize(
    "torn", [b"", b'{"number":', b"\x00\xff\n", b"[]\n"], ids=["whole", "cut off", "noise", "other"]
)
def test_sweep_resumes_from_its_checkpoint(torn: bytes, tmp_path: Path) -> None:
    tasks = own_tasks(OWN, RULES)
    complete = run(tasks, one_by_one, tmp_path)
    file = file_for(tasks, tmp_path)

    def interrupted(todo: Sequence[Task]) -> Iterator[Partial]:
        yield from one_by_one(todo[:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(tasks, interrupted, file, lambda _: None)
    file.write_bytes(file.read_bytes() + torn)
    left: list[int] = []

    def recording(todo: Sequence[Task]) -> Iterator[Partial]:
        left.extend(task.number for task in todo)
        return one_by_one(todo)

    assert run(tasks, recording, tmp_path) == complete
    assert left == [task.number for task in tasks[2:]]


def test_other_inputs_or_rules_have_another_checkpoint(tmp_path: Path) -> None:
    other = Rules(RULES.contestants, threshold=0.4)
    names = {file_for(tasks, tmp_path) for tasks in (own_tasks(OWN, RULES), own_tasks(OWN[1:], RULES))}
    assert len(names | {file_for(own_tasks(OWN, other), tmp_path)}) == 3


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("inputs") / "many.csv"
    rows = (f"{1 + n % 9},3,2,{n % 41},{n % 13},{1 + n % 29}\n" for n in range(200 * TASKS))
    file.write_text("nodes.a,nodes.b,nodes.c,endpoints.a,endpoints.b,endpoints.c\n" + "".join(rows))
    return file


@pytest.fixture(scope="module")
def complete(many_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return finished(simulate(many_rows, tmp_path_factory.mktemp("whole"), 1))


class Stopped(NamedTuple):
    code: int
    out: str
    err: str


def simulate(file: Path, checkpoint: Path, jobs: int) -> subprocess.Popen[str]:
    command = [
        str(Path(sys.executable).with_name("zonewise")),
        "simulate",
        "-f",
        str(file),
        "-o",
        "json",
        "--jobs",
        str(jobs),
    ]
    # tasks with optimal are slow enough to interrupt a sweep midway
    command += ["--algorithms", "local,optimal", "--checkpoint", str(checkpoint)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    rows: list[dict[str, Any]] = json.loads(out)["tables"][0]["rows"]
    return [{name: value for name, value in row.items() if name != "cpuSeconds"} for row in rows]


def checkpointed(checkpoint: Path) -> int:
    for file in checkpoint.glob("*.jsonl"):
        with suppress(FileNotFoundError):
            return file.read_bytes().count(b"\n")
    return 0


def has_workers(pid: int) -> bool:
    """Whether a worker's interpreter has installed its SIGINT handler."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return any(catches_interrupt(Path(f"/proc/{worker}/status").read_text()) for worker in workers)
    return False


def catches_interrupt(status: str) -> bool:
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(match and int(match[1], 16) >> signal.SIGINT - 1 & 1)


def prints(process: subprocess.Popen[str]) -> bool:
    """Whether it prints its table, which is larger than a pipe, so that it does not exit before it is read."""
    return bool(process.stdout and select.select([process.stdout], [], [], 0)[0])


def interrupted_run(
    start: Callable[[], subprocess.Popen[str]],
    ready: Callable[[int], bool],
    sent: signal.Signals,
    midway: Callable[[], bool] = lambda: True,
) -> Stopped:
    """Repeated if necessary: on a busy machine a sweep may finish before the signal is sent."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        process = start()
        while process.poll() is None and not ready(process.pid) and not prints(process):
            time.sleep(0.005)
        if not prints(process):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        if process.returncode and midway():
            return Stopped(process.returncode, out, err)
    raise AssertionError(f"always finished before {sent.name} was sent")


@pytest.mark.timeout(3 * PATIENCE_SECONDS)
@pytest.mark.parametrize(
    ("sent", "jobs", "code"), [(signal.SIGINT, 1, 130), (signal.SIGINT, 2, 130), (signal.SIGKILL, 1, -signal.SIGKILL)]
)
def test_interrupted_command_resumes_to_the_same_table(
    sent: signal.Signals, jobs: int, code: int, many_rows: Path, complete: list[dict[str, Any]], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoints"

    def start() -> subprocess.Popen[str]:
        shutil.rmtree(checkpoint, ignore_errors=True)
        return simulate(many_rows, checkpoint, jobs)

    stopped = interrupted_run(
        start, lambda _: checkpointed(checkpoint) > 0, sent, lambda: checkpointed(checkpoint) < TASKS
    )
    (file,) = checkpoint.glob("*.jsonl")
    message = "" if sent is signal.SIGKILL else f"stopped; run the same command to continue ({file})\n"
    assert stopped == Stopped(code, "", message)
    assert finished(simulate(many_rows, checkpoint, jobs)) == complete


@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_starting_workers_print_nothing_on_interrupt(many_rows: Path, tmp_path: Path) -> None:
    stopped = interrupted_run(lambda: simulate(many_rows, tmp_path, 2), has_workers, signal.SIGINT)
    (file,) = tmp_path.glob("*.jsonl")
    assert stopped == Stopped(130, "", f"stopped; run the same command to continue ({file})\n")
