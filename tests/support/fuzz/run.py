"""Fuzzing of everything that reads foreign input: `make fuzz`, `make fuzz FUZZ=dns RUNS=10000000`.

Each target is a module beside this one: `SEEDS`, `check`, and `WORDS` where inputs are JSON and are to be mutated as
such. Atheris guides the search by the edges covered; without it, inputs are mutated blindly. What was found goes to
build/fuzz/NAME. An input that raises, or takes more than a second, is written to build/fuzz and named with the command
that tries it again.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from support.fuzz import json_mutator

try:
    import atheris
except ImportError:
    atheris = None

TARGETS = ("dns", "annotations", "budgets", "ledger", "csi", "kubeconfig", "dumps", "netlink", "admission")
DEFAULT_RUNS = 1_000_000
MAX_BYTES = 1024
SLOW_SECONDS = 1
FOUND = Path("build/fuzz")


class Outcome(NamedTuple):
    target: str
    inputs: int
    seconds: float
    crashes: int
    slow: int
    edges: str


def main() -> int:
    match sys.argv[1:]:
        case ["--inside", name, *arguments]:
            return search(name, arguments)
        case ["--replay", path]:
            target(Path(path).name.split("-")[0]).check(Path(path).read_bytes())
            print("passes")
            return 0
        case names:
            return fuzz(names or list(TARGETS), int(os.environ.get("RUNS") or DEFAULT_RUNS))


def fuzz(names: list[str], runs: int) -> int:
    if unknown := set(names) - set(TARGETS):
        sys.exit(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    outcomes = [run(name, runs) for name in names]
    print(f"\n{'target':<12} {'inputs':>11} {'seconds':>8} {'crashes':>8} {'slow':>5} {'edges':>6}")
    for one in outcomes:
        print(f"{one.target:<12} {one.inputs:>11,} {one.seconds:>8.0f} {one.crashes:>8} {one.slow:>5} {one.edges:>6}")
    return int(any(one.crashes or one.slow for one in outcomes))


def run(name: str, runs: int) -> Outcome:
    """In a process of its own: libFuzzer never returns, and a crash may be of the interpreter."""
    corpus = FOUND / name
    corpus.mkdir(parents=True, exist_ok=True)
    for old in FOUND.glob(f"{name}-*"):
        old.unlink()
    began = time.monotonic()
    command = [sys.executable, "-m", "support.fuzz.run", "--inside", name, f"-runs={runs}", str(corpus)]
    with (FOUND / f"{name}.log").open("w") as log:
        code = subprocess.run(command, check=False, stdout=log, stderr=subprocess.STDOUT).returncode
    seconds = time.monotonic() - began
    text = (FOUND / f"{name}.log").read_text(errors="replace")
    progress = re.findall(r"^#(\d+)\s.*?(?:cov: (\d+)|$)", text, re.MULTILINE)
    found = sorted(FOUND.glob(f"{name}-*"))
    slow = [path for path in found if path.name.startswith(f"{name}-slow")]
    for path in found:
        print(f"{name}: {'slow' if path in slow else 'crash'}; again: make fuzz REPLAY={path}", flush=True)
    if code and not found:
        print(f"{name}: ended with code {code}, see {FOUND / name}.log", flush=True)
    inputs, edges = int(progress[-1][0]) if progress else 0, max((int(cov) for _, cov in progress if cov), default=0)
    return Outcome(name, inputs, seconds, max(len(found) - len(slow), int(code != 0)), len(slow), str(edges or "-"))


def target(name: str) -> Any:
    with atheris.instrument_imports(include=["zonewise"]) if atheris else nullcontext():
        return importlib.import_module(f"support.fuzz.{name}")


def search(name: str, arguments: list[str]) -> int:
    tried = target(name)
    corpus, runs = Path(arguments[-1]), int(arguments[0].partition("=")[2])
    for number, seed in enumerate(tried.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = getattr(tried, "WORDS", ())
    if atheris is None:
        return search_blindly(tried, name, runs, words)
    options = [
        f"-max_len={MAX_BYTES if words == () else 4 * MAX_BYTES}",
        "-report_slow_units=1000",
        "-timeout=1000",
        f"-artifact_prefix={FOUND}/{name}-",
    ]

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        return json_mutator.mutate(data, max_size, random.Random(seed), words, atheris.Mutate)

    mutator = {"custom_mutator": mutated} if words else {}
    atheris.Setup([__file__, *options, *arguments], partial(recorded, tried.check, name), **mutator)
    atheris.Fuzz()
    return 0


def recorded(check: Callable[[bytes], None], name: str, data: bytes) -> None:
    """Time is the processor's: a busy machine makes no input slow."""
    began = time.process_time()
    try:
        check(data)
    except Exception:
        record(name, "crash", data)
        raise
    if time.process_time() - began > SLOW_SECONDS:
        record(name, "slow", data)


def record(name: str, kind: str, data: bytes) -> None:
    (FOUND / f"{name}-{kind}-{hashlib.sha1(data).hexdigest()}").write_bytes(data)  # as libFuzzer names them


def search_blindly(tried: Any, name: str, runs: int, words: tuple[str, ...]) -> int:
    chance = random.Random(name)
    for number in range(1, runs + 1):
        data = json_mutator.mutate(chance.choice(tried.SEEDS), 4 * MAX_BYTES, chance, words, json_mutator.flip)
        recorded(tried.check, name, data)
        if number % 10_000 == 0 or number == runs:
            print(f"#{number}\t", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
