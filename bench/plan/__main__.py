"""`make bench-plan`: time and memory of `zonewise plan -f` on the dump of a large cluster."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench import usage
from bench.plan import large
from bench.report import Row, median, publish

ZONEWISE = str(Path(sys.executable).with_name("zonewise"))
NICE = ("nice", "-n", "-10") if os.geteuid() == 0 else ()
LARGE = large.Size(nodes=5_000, services=2_000, pods=50_000)
GOAL_SECONDS, GOAL_MIB = 10, 1024
ROUNDS = 3
COMMANDS: dict[str, tuple[str, ...]] = {"plan": (), "plan --lose-zone": ("--lose-zone", large.ZONES[0])}

NOTES = """\
The dump is what `kubectl get nodes,services,endpointslices,pods -A -o yaml` prints, with pods of 4 KB and nodes that list fifty images; without slices, the endpoints come from the pods.
A fifth of the Services each has no policy, same-zone Prefer, same-zone Require, automatic hints, and topology keys.
Memory is the process's peak, as the kernel counts it, including the dump itself."""


class Run(NamedTuple):
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    output: str


def plan(dump: Path, *arguments: str, before: tuple[str, ...] = ()) -> Run:
    with tempfile.TemporaryFile() as out:
        used = usage.of([*before, ZONEWISE, "plan", "-f", str(dump), *arguments], stdout=out)
        out.seek(0)
        output = out.read().decode()
    if used.exit_code:
        raise SystemExit(f"zonewise plan -f {dump} failed: {output}")
    return Run(used.wall_seconds, used.cpu_seconds, used.peak_mib, output)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        dump = Path(directory) / "dump"
        for name, form, slices in (
            ("YAML", "yaml", True),
            ("YAML without slices", "yaml", False),
            ("JSON", "json", True),
        ):
            large.write(dump, LARGE, form=form, slices=slices)
            title = f"{name}, {dump.stat().st_size / 2**20:.0f} MiB"
            for command, arguments in COMMANDS.items():
                rows += _rows(f"`{command}`, {title}", [plan(dump, *arguments, before=NICE) for _ in range(ROUNDS)])
    publish("plan", "make bench-plan", rows, NOTES)


def _rows(title: str, measured: list[Run]) -> list[Row]:
    runs = [{"wall": run.wall_seconds, "cpu": run.cpu_seconds, "mib": run.peak_mib} for run in measured]
    return [
        Row(title, "s", median(runs, "wall"), None, "", GOAL_SECONDS, runs),
        Row(title, "CPU s", median(runs, "cpu"), None, "", None, runs),
        Row(title, "MiB", max(run["mib"] for run in runs), None, "", GOAL_MIB, runs),
    ]


if __name__ == "__main__":
    main()
