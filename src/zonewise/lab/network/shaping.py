"""Traffic shaping between zones: cuts, loss, latency. The desired state is one value, applied to the lab's router.

Cuts and losses are rules of nftables, replaced in one transaction. Latency is made by a delay line, a small process of
ours in the router (`delay`), because few kernels of build machines and sandboxes have netem: policy routes lead
what goes between two slow zones through its tun device. If it dies, traffic passes undelayed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import msgspec

from zonewise.lab import processes, records
from zonewise.lab.decide.addresses import AddressPlan, PlanError, ZonePlan
from zonewise.lab.network import namespaces
from zonewise.lab.network.namespaces import NetworkError
from zonewise.lab.network.network import router_port
from zonewise.objects.stored import Stored

MOST_LATENCY_MS = 10_000
_TABLE = "inet zonewise"
_LOSS_STEPS = 10_000  # losses are rounded to a hundredth of a percent
_FIRST_ROUTE_TABLE = 1000
_OUR_RULES = "proto 122"  # marks the router's policy rules as ours, to find them again
_RECORD = "shaping.json"
_DELAY_LINE = "delay-line"
_DELAY_LINE_READY_SECONDS = 30.0


class ZonePath(msgspec.Struct, frozen=True):
    """What happens to packets between zones `a` and `b`, each way: a round trip waits twice and is dropped twice."""

    a: str
    b: str
    latency_ms: float
    loss_percent: float


class Shaping(Stored, frozen=True):
    cut: frozenset[str] = frozenset()
    paths: tuple[ZonePath, ...] = ()

    def with_cut(self, zone: str) -> Shaping:
        return Shaping(self.cut | {zone}, self.paths)

    def with_healed(self, zone: str) -> Shaping:
        return Shaping(self.cut - {zone}, self.paths)

    def with_path(self, path: ZonePath) -> Shaping:
        """Replaces the path of these two zones, in either order; a path without effect is left out."""
        others = tuple(known for known in self.paths if {known.a, known.b} != {path.a, path.b})
        return Shaping(self.cut, (*others, path) if path.latency_ms or path.loss_percent else others)

    @property
    def slow(self) -> tuple[ZonePath, ...]:
        return tuple(path for path in self.paths if path.latency_ms)


def check(plan: AddressPlan, path: ZonePath) -> None:
    plan.zone(path.a)
    plan.zone(path.b)
    if path.a == path.b:
        raise PlanError(f"a path is between two zones, not within {path.a}")
    if not 0 <= path.loss_percent <= 100:
        raise PlanError(f"loss is 0 to 100 percent, not {path.loss_percent}")
    if not 0 <= path.latency_ms <= MOST_LATENCY_MS:
        raise PlanError(f"latency is 0 to {MOST_LATENCY_MS} ms each way, not {path.latency_ms}")


def ruleset(plan: AddressPlan, shaping: Shaping) -> str:
    """The router's whole table, as text for `nft -f`. A packet on a detour is judged once, when it enters from its zone."""
    rules = [*_cuts(plan, shaping), *_losses(plan, shaping)]
    body = "".join(f"    {rule}\n" for rule in rules)
    return (
        f"add table {_TABLE}\n"
        f"delete table {_TABLE}\n"
        f"table {_TABLE} {{\n  chain forward {{\n    type filter hook forward priority 0\n{body}  }}\n}}\n"
    )


def detours(plan: AddressPlan, shaping: Shaping, version: int) -> list[str]:
    """Policy routes of one IP version through the delay line's devices, which must exist; they replace earlier ones."""
    lines = [f"rule flush {_OUR_RULES}"]
    for index, path in enumerate(shaping.slow):
        table = _FIRST_ROUTE_TABLE + index
        lines.append(f"route replace default dev {_delay_device(index)} table {table}")
        lines += [
            f"rule add pref {table} iif {router_port(plan, source)} to {prefix} lookup {table} {_OUR_RULES}"
            for source, prefix in _directions(plan, path)
            if prefix.version == version
        ]
    return lines


def read(directory: Path) -> Shaping:
    """What was last applied to the lab in this directory."""
    try:
        return records.read(directory / _RECORD, Shaping)
    except FileNotFoundError:
        return Shaping()


def forget(directory: Path) -> None:
    (directory / _RECORD).unlink(missing_ok=True)


def apply(plan: AddressPlan, directory: Path, shaping: Shaping) -> None:
    """Make the router do this and nothing else. A change of latencies restarts the delay line, which loses what it held."""
    if shaping.slow != read(directory).slow or (shaping.slow and not _delay_line_runs(directory)):
        _restart_delay_line(plan, directory, shaping)
    namespaces.run(namespaces.command(plan.namespace, ["nft", "-f", "-"]), ruleset(plan, shaping))
    records.write(directory / _RECORD, shaping)


def _delay_line_runs(directory: Path) -> bool:
    process = processes.find(directory, _DELAY_LINE)
    return process is not None and process.running


def _restart_delay_line(plan: AddressPlan, directory: Path, shaping: Shaping) -> None:
    processes.dismiss(directory, _DELAY_LINE, 1.0)
    if shaping.slow:
        latencies = [str(path.latency_ms) for path in shaping.slow]
        argv = namespaces.command(plan.namespace, [sys.executable, "-m", "zonewise.lab.network.delay", *latencies])
        _await_devices(plan, processes.spawn(directory, _DELAY_LINE, argv), directory, len(latencies))
        namespaces.ip([f"link set {_delay_device(index)} up" for index in range(len(latencies))], plan.namespace)
    namespaces.ip(detours(plan, shaping, 4), plan.namespace, family="-4")
    namespaces.ip(detours(plan, shaping, 6), plan.namespace, family="-6")


def _await_devices(plan: AddressPlan, process: processes.Process, directory: Path, count: int) -> None:
    wanted = {_delay_device(index) for index in range(count)}
    deadline = time.monotonic() + _DELAY_LINE_READY_SECONDS
    while not wanted <= namespaces.links(plan.namespace):
        if not process.running or time.monotonic() > deadline:
            log = processes.log_path(directory, _DELAY_LINE)
            raise NetworkError(f"latency needs tun devices (/dev/net/tun), and none could be made: see {log}")
        time.sleep(0.01)


def _delay_device(index: int) -> str:
    return f"delay{index}"


def _cuts(plan: AddressPlan, shaping: Shaping) -> Iterator[str]:
    for name in sorted(shaping.cut):
        port = router_port(plan, plan.zone(name))
        yield f'iifname "{port}" drop'
        yield f'oifname "{port}" drop'


def _losses(plan: AddressPlan, shaping: Shaping) -> Iterator[str]:
    for path in shaping.paths:
        steps = round(path.loss_percent * _LOSS_STEPS / 100)
        if steps == 0:
            continue
        for source, prefix in _directions(plan, path):
            family = "ip" if prefix.version == 4 else "ip6"
            yield (
                f'iifname "{router_port(plan, source)}" {family} daddr {prefix} '
                f"numgen random mod {_LOSS_STEPS} < {steps} drop"
            )


def _directions(plan: AddressPlan, path: ZonePath) -> Iterator[tuple[ZonePlan, IPv4Network | IPv6Network]]:
    a, b = plan.zone(path.a), plan.zone(path.b)
    for source, target in ((a, b), (b, a)):
        yield source, target.prefix.v4
        yield source, target.prefix.v6
