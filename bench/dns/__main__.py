"""`make bench-dns`: Zonewise's DNS server and CoreDNS with its cache, on the same API server with the same data.

Ours filters every answer by the client's zone, and counts and limits its clients; CoreDNS does neither.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import report
from bench.dns import coredns, load
from bench.dns.churn import Churn
from bench.dns.coredns import CoreDns
from bench.dns.differential import free_port
from bench.report import Row
from zonewise.lab.controlplane import controlplane
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

CHUNK = 2000
CHUNKS = 5
CHURN = 500

NOTES = f"""\
{load.SERVICES_COUNT:,} headless Services with {load.ENDPOINTS_EACH} endpoints each.
Queries by dnsperf: 70 % A, 15 % AAAA (no data), 15 % names that do not exist.
Rounds are interleaved; figures are medians.
One core: the server on core 0, the client on core 1.
Both cores: server and dnsperf share the two, so that the cost of a query for the server decides the rate.
Round trips are of one client that sends a query when it has its answer, in turns of {CHUNK:,} to each server.
Memory is of all processes together, after the load: proportional (PSS: shared pages once; goal), the plain sum of resident sizes, and as if no other program on the machine used Python's libraries (each file once, in full).
Churn: {CHURN} endpoints a second are replaced through the API server, which both watch, and which runs on the same two cores.
Ours filters every answer by the client's zone and counts and limits clients; CoreDNS answers plainly, from its cache of 5 s.
Neither logs queries."""

Server = load.Ours | CoreDns
Runs = dict[str, list[dict[str, float]]]
"""By measurement: a run per round."""

GOALS = {
    "CPU per query, one core": 1 / 3,
    "seconds per million queries, both cores": 0.5,
    "unloaded round trip, p99": 1.0,
    "unloaded round trip, p99.9": 1.0,
    "round trip under churn, p99": 1.0,
    "memory, one serving process": 1.0,
    "memory, two serving processes": 1.0,
    "change to answer": 1.0,
}
UNITS = {"CPU": "us", "seconds": "s", "round": "us", "unloaded": "us", "memory": "MiB", "change": "ms"}


class Comparison:
    def __init__(self, plane: ControlPlane, scratch: Path, seconds: int, rounds: int) -> None:
        self.plane, self.scratch, self.seconds, self.rounds = plane, scratch, seconds, rounds
        self.questions = scratch / "questions"
        self.churn_reached: list[float] = []
        load.write_questions(self.questions)

    @contextmanager
    def started(self, cpus: str, processes: int) -> Iterator[tuple[load.Ours, CoreDns]]:
        theirs = CoreDns(self.plane.kubeconfig, free_port(), cache=True, directory=self.scratch, cpus=cpus, zonal=False)
        ours = load.Ours(self.plane, free_port(), processes, cpus)
        try:
            load.wait_answers(ours.port)
            load.wait_answers(theirs.port)
            yield ours, theirs
        finally:
            ours.stop()
            theirs.stop()

    def one_core(self) -> Runs:
        runs: Runs = {}
        with self.started("0", 1) as (ours, theirs):
            for _ in range(self.rounds):
                _add(runs, self.cpu(ours), self.cpu(theirs))
                _add(runs, *map(_unloaded, _in_turns(ours, theirs)))
            _add(runs, _memory(ours, "one serving process"), _memory(theirs, "one serving process"))
        return runs

    def cpu(self, server: Server) -> dict[str, float]:
        run = load.run(server.port, server.process.pid, self.questions, self.seconds, "1")
        return {"CPU per query, one core": run.cpu_us_per_query, "lost queries": run.lost}

    def both_cores(self) -> Runs:
        runs: Runs = {}
        with self.started("0,1", 2) as (ours, theirs):
            for number in range(self.rounds):
                _add(runs, self.throughput(ours, number), self.throughput(theirs, number))
            _add(runs, _memory(ours, "two serving processes"), _memory(theirs, "two serving processes"))
            for _ in range(self.rounds):
                _add(runs, *self.under_churn(ours, theirs))
        return runs

    def throughput(self, server: Server, number: int) -> dict[str, float]:
        run = load.run(server.port, server.process.pid, self.questions, self.seconds, "0,1", clients=32)
        changes = [load.change_seconds(self.plane, server.port, 1 + 2 * number + index) for index in range(2)]
        return {
            "seconds per million queries, both cores": 1e6 / run.queries_per_second,
            "change to answer": statistics.median(changes) * 1000,
        }

    def under_churn(self, ours: Server, theirs: Server) -> list[dict[str, float]]:
        churn = Churn(self.plane.kubeconfig, CHURN)
        try:
            return [
                {f"round trip under churn, {name}": value for name, value in _percentiles(times).items()}
                for times in _in_turns(ours, theirs)
            ]
        finally:
            self.churn_reached.append(churn.stop())


def _in_turns(ours: Server, theirs: Server) -> tuple[list[float], list[float]]:
    """Round trips to both, a few thousand at a time, so that a noisy second affects both."""
    round_trips: tuple[list[float], list[float]] = ([], [])
    for _ in range(CHUNKS):
        for server, times in zip((ours, theirs), round_trips, strict=True):
            times.extend(load.round_trips_us(server.port, CHUNK))
    return round_trips


def _percentiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {name: ordered[int(len(ordered) * share)] for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))}


def _unloaded(times: list[float]) -> dict[str, float]:
    return {f"unloaded round trip, {name}": value for name, value in _percentiles(times).items()}


def _memory(server: Server, processes: str) -> dict[str, float]:
    memory = load.memory_of(server.process.pid)
    return {
        f"memory, {processes}": memory.proportional,
        f"memory, {processes}, sum of resident": memory.resident,
        f"memory, {processes}, alone on the machine": memory.alone,
    }


def _add(runs: Runs, ours: dict[str, float], peer: dict[str, float]) -> None:
    for name, figure in ours.items():
        runs.setdefault(name, []).append({"ours": figure, "peer": peer[name]})


def _row(name: str, runs: list[dict[str, float]]) -> Row:
    unit = UNITS.get(name.split(maxsplit=1)[0].rstrip(","), "")
    ours, peer = report.median(runs, "ours"), report.median(runs, "peer")
    return Row(name, unit, ours, peer, "CoreDNS + cache", GOALS.get(name), runs)


def measure(seconds: int, rounds: int) -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "plane")
        try:
            plane = ControlPlane.start(directory, programs=(Program.ETCD, Program.APISERVER))
            asyncio.run(load.write_cluster(plane))
            comparison = Comparison(plane, Path(scratch), seconds, rounds)
            runs = comparison.one_core() | comparison.both_cores()
        finally:
            controlplane.remove(directory)
    rows = [_row(name, of_name) for name, of_name in runs.items()]
    reached = f"Endpoints replaced a second: {statistics.median(comparison.churn_reached):.0f}."
    busy = f"Load average: {before:.1f} before, {os.getloadavg()[0]:.1f} after."
    report.publish("dns", "make bench-dns", rows, f"{NOTES}\n\n{reached} {busy}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="Seconds of load per run.")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds per measurement.")
    options = parser.parse_args()
    coredns.ensure()
    try:
        measure(options.seconds, options.rounds)
    except KeyboardInterrupt:
        sys.exit("interrupted: no results written, all processes stopped")


if __name__ == "__main__":
    main()
