"""`make bench-kube`: decoding, watches, lab start and command line, each compared to a peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.kube import bare
from bench.kube.pods import pages
from bench.report import Row, interleave, measured, median, publish

PODS: Final = 50_000
RATE, SECONDS = 2_000, 15
REAL_TIME: Final = ("chrt", "--fifo", "10") if os.geteuid() == 0 else ()
"""Real-time priority, so that latency percentiles do not depend on other processes."""


def main(chosen: list[str]) -> None:
    """Run all parts, or those in `chosen` with the last results of the others."""
    parts = {"decoding": decoding, "watching": watching, "starting": starting, "commands": command_line}
    rows = [
        row
        for part, measure in parts.items()
        for row in measured(f"kube-{part}", measure, rerun=not chosen or part in chosen)
    ]
    publish("kube", "make bench-kube", rows, NOTES)


NOTES: Final = """\
Decoding: the same recorded list pages, one process per library; CPU seconds and growth of resident memory with every pod kept.
Watching: pod events of 5.5 KB over TLS from a replaying server on the other core, until an indexed cache (ours) or an object (the peer's) reaches the handler.
Both sides run at real-time priority where they may (root), so that other work on the machine does not count.
The official client cannot keep up with 2,000 events a second, so its delay grows for as long as the run lasts.
Starting: `zonewise lab up` without nodes, until it returns, beside etcd and kube-apiserver started bare with existing certificates."""


def decoding() -> list[Row]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        recorded = Path(directory) / "pods.jsonl"
        with recorded.open("wb") as file:
            file.writelines(page + b"\n" for page in pages(PODS))
        runs = []
        for round_number in range(3):
            names = ["zonewise", "lightkube"] + (["official", "kr8s"] if round_number == 0 else [])
            runs.append({name: _run_contestant("decode", name, str(recorded)) for name in names})
    return [
        Row(
            f"decode {PODS:,} pods",
            "CPU s",
            _median_of(runs, "zonewise", "cpu_seconds"),
            _median_of(runs, peer, "cpu_seconds"),
            title,
            0.1,
            _column(runs, "cpu_seconds"),
        )
        for peer, title in PEERS.items()
    ] + [
        Row(
            f"keep {PODS:,} pods",
            "MiB",
            _median_of(runs, "zonewise", "mib"),
            _median_of(runs, peer, "mib"),
            title,
            0.2,
            _column(runs, "mib"),
        )
        for peer, title in PEERS.items()
    ]


PEERS: Final = {"official": "official client", "lightkube": "lightkube", "kr8s": "kr8s"}


def watching() -> list[Row]:
    runs: list[dict[str, Any]] = [{name: _watch(name) for name in ("zonewise", "official")} for _ in range(3)]
    ours, official = (_median_of(runs, name, "cpu_us_per_event") for name in ("zonewise", "official"))
    return [
        Row(
            f"event to handler, p99 at {RATE:,}/s on one core",
            "ms",
            _median_of(runs, "zonewise", "p99_ms"),
            None,
            "",
            5,
            _column(runs, "p99_ms"),
        ),
        Row("CPU per watch event", "us", ours, official, "official client", None, _column(runs, "cpu_us_per_event")),
    ]


def _watch(name: str) -> dict[str, float]:
    events = RATE * SECONDS if name == "zonewise" else RATE * 4
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        command = [sys.executable, "-m", "bench.kube.replay", directory, str(RATE), str(SECONDS)]
        server = subprocess.Popen(["taskset", "-c", "1", *REAL_TIME, *command])
        try:
            while not kubeconfig.exists():
                time.sleep(0.05)
            return _run_contestant("latency", name, str(kubeconfig), str(events), prefix=REAL_TIME)
        finally:
            server.terminate()
            server.wait()


def starting() -> list[Row]:
    runs = interleave({"ours": _lab_up, "bare": bare.start}, rounds=5)
    return [
        Row(
            "warm `lab up` to ready API",
            "s",
            median(runs, "ours"),
            median(runs, "bare"),
            "its own processes",
            1.5,
            runs,
        )
    ]


def _lab_up() -> float:
    name = f"bench-{os.getpid()}"
    lab = [str(Path(sys.executable).with_name("zonewise")), "lab"]
    started = time.monotonic()
    subprocess.run(
        [*lab, "up", "--name", name, "--zones", "0"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seconds = time.monotonic() - started
    subprocess.run([*lab, "down", "--name", name], check=True, stdout=subprocess.DEVNULL)
    return seconds


def command_line() -> list[Row]:
    ours = [str(Path(sys.executable).with_name("zonewise")), "--help"]
    runs = interleave(
        {
            "ours": lambda: _milliseconds(ours),
            "kubectl": lambda: _milliseconds([str(bare.binary("kubectl")), "--help"]),
        },
        rounds=15,
    )
    return [
        Row("`zonewise --help`", "ms", median(runs, "ours"), None, "", 150, runs),
        Row("`--help`", "ms", median(runs, "ours"), median(runs, "kubectl"), "kubectl", None, runs),
    ]


def _milliseconds(command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - started) * 1000


def _run_contestant(module: str, *arguments: str, prefix: tuple[str, ...] = ()) -> dict[str, float]:
    process = subprocess.run(
        [*prefix, sys.executable, "-m", f"bench.kube.{module}", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    print(f"  {module} {arguments[0]}: {figures}", file=sys.stderr)
    return figures


def _column(runs: list[dict[str, Any]], figure: str) -> list[dict[str, float]]:
    return [{name: figures[figure] for name, figures in run.items()} for run in runs]


def _median_of(runs: list[dict[str, Any]], name: str, figure: str) -> float:
    return median([run for run in _column(runs, figure) if name in run], name)


if __name__ == "__main__":
    main(sys.argv[1:])
