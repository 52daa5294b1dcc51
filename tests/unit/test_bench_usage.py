"""Memory of a measured command is its own."""

from __future__ import annotations

import sys

from bench import usage

MIB = 1 << 20


def test_memory_of_the_caller_is_not_counted() -> None:
    ballast = bytearray(200 * MIB)
    ballast[::4096] = b"x" * len(ballast[::4096])
    assert usage.of(["true"]).peak_mib < 100
    assert len(ballast) == 200 * MIB


def test_exit_code_and_usage_are_those_of_the_command() -> None:
    program = f"data = b'x' * {150 * MIB}; raise SystemExit(3)"
    used = usage.of([sys.executable, "-c", program])
    assert used.exit_code == 3
    assert used.peak_mib > 150
    assert 0 < used.cpu_seconds < used.wall_seconds * 2
