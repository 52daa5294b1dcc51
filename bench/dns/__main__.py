"""`make bench-dns`: our DNS server beside the real CoreDNS with its cache, on the same API server with the same data.

Ours filters every answer by the client's zone, and counts and limits its clients; CoreDNS answers plainly.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.dns import load
from bench.dns.coredns import CoreDns
from bench.dns.differential import free_port
from bench.report import Row
from zonewise.errors import ZonewiseError
from zonewise.lab import controlplane
from zonewise.lab.controlplane import ControlPlane
from zonewise.lab.programs import Program

NOTES = f"""{load.SERVICES_COUNT:,} headless Services with {load.ENDPOINTS_EACH} endpoints each. Asked by dnsperf: 70 % A, 15 % AAAA (no data), 15 % names that do
not exist. Rounds are interleaved; medians. One core: the server on core 0, dnsperf on core 1. Memory is proportional (PSS), of all
processes together. Both servers run with `loadbalance`'s or our own turning of records; neither logs queries."""


class Contest:
    def __init__(self, plane: ControlPlane, scratch: Path, seconds: int, rounds: int) -> None:
        self.plane, self.scratch, self.seconds, self.rounds = plane, scratch, seconds, rounds
        self.questions = scratch / "questions"
        load.write_questions(self.questions)

    def start(self, cpus: str, processes: int) -> tuple[load.Ours, CoreDns]:
        ours = load.Ours(self.plane, free_port(), processes, cpus)
        theirs = CoreDns(self.plane.kubeconfig, free_port(), cache=True, directory=self.scratch, cpus=cpus, zonal=False)
        try:
            load.wait_answers(ours.port)
            load.wait_answers(theirs.port)
        except BaseException:
            ours.stop()
            theirs.stop()
            raise
        return ours, theirs

    def interleaved(
        self, ours: load.Ours, theirs: CoreDns, measure: Callable[[load.Ours | CoreDns], dict[str, float]]
    ) -> dict[str, list[dict[str, float]]]:
        """By what was measured: a run per round."""
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(self.rounds):
            found = {"ours": measure(ours), "peer": measure(theirs)}
            for what in found["ours"]:
                runs.setdefault(what, []).append({name: values[what] for name, values in found.items()})
        return runs

    def one_core(self) -> list[Row]:
        ours, theirs = self.start("0", 1)
        try:

            def measure(server: load.Ours | CoreDns) -> dict[str, float]:
                run = load.run(server.port, server.process.pid, self.questions, self.seconds, "1")
                times = load.round_trips_us(server.port, 5000)
                return {
                    "CPU per query": run.cpu_us_per_query,
                    "lost queries": run.lost,
                    "unloaded round trip, median": times[len(times) // 2],
                    "unloaded round trip, p99": times[int(len(times) * 0.99)],
                    "unloaded round trip, p99.9": times[int(len(times) * 0.999)],
                    "memory": load.memory_mib(server.process.pid),
                }

            runs = self.interleaved(ours, theirs, measure)
        finally:
            ours.stop()
            theirs.stop()
        goals = {
            "CPU per query": 1 / 3,
            "memory": 1.0,
            "unloaded round trip, p99": 1.0,
            "unloaded round trip, p99.9": 1.0,
        }
        units = {"memory": "MiB", "lost queries": ""}
        return [_row(what, units.get(what, "us"), found, goals.get(what)) for what, found in runs.items()]

    def both_cores(self) -> list[Row]:
        ours, theirs = self.start("0,1", 2)
        try:

            def measure(server: load.Ours | CoreDns) -> dict[str, float]:
                run = load.run(server.port, server.process.pid, self.questions, self.seconds, "0,1", clients=32)
                changes = [load.change_seconds(self.plane, server.port, self.next_change()) for _ in range(3)]
                return {
                    "seconds per million queries, both cores": 1e6 / run.queries_per_second,
                    "change to answer": statistics.median(changes) * 1000,
                }

            runs = self.interleaved(ours, theirs, measure)
        finally:
            ours.stop()
            theirs.stop()
        units = {"change to answer": "ms"}
        goals = {"seconds per million queries, both cores": 0.5, "change to answer": 1.0}
        return [_row(what, units.get(what, "s"), found, goals[what]) for what, found in runs.items()]

    _changes = 0

    def next_change(self) -> int:
        self._changes += 1
        return self._changes


def _row(what: str, unit: str, runs: list[dict[str, float]], goal: float | None) -> Row:
    return Row(what, unit, report.median(runs, "ours"), report.median(runs, "peer"), "CoreDNS + cache", goal, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="of load per run")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if not shutil.which("dnsperf"):
        raise ZonewiseError("dnsperf is missing: install it, on Debian with `apt-get install dnsperf`")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "plane")
        plane = ControlPlane.start(directory, programs=(Program.ETCD, Program.APISERVER))
        try:
            asyncio.run(load.write_cluster(plane))
            contest = Contest(plane, Path(scratch), asked.seconds, asked.rounds)
            rows = contest.one_core() + contest.both_cores()
        finally:
            controlplane.remove(directory)
    busy = (
        f"Others were busy on the machine meanwhile: load average {before:.0f} before, {os.getloadavg()[0]:.0f} after."
    )
    report.publish("dns", "make bench-dns", rows, f"{NOTES}\n\n{busy}")


if __name__ == "__main__":
    main()
