"""The targets of `make fuzz`: their seeds and some mutations pass, a crash is written down, and the table counts it."""

from __future__ import annotations

import importlib
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from support.fuzz import json_mutator, run

MUTATIONS = 200


@pytest.mark.parametrize("name", run.TARGETS)
def test_seeds_and_mutations_break_nothing(name: str) -> None:
    target, chance = importlib.import_module(f"support.fuzz.{name}"), Random(name)
    for seed in target.SEEDS:
        target.check(seed)
    for _ in range(MUTATIONS):
        seed = chance.choice(target.SEEDS)
        target.check(json_mutator.mutate(seed, 4096, chance, getattr(target, "WORDS", ()), json_mutator.flip))


def test_input_that_raises_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(data: bytes) -> None:
        assert b"seed" in data

    monkeypatch.setattr(run, "FOUND", tmp_path)
    with pytest.raises(AssertionError):
        run.search_blindly(SimpleNamespace(SEEDS=[b"seed"], check=check), "x", 1000, ())
    (found,) = tmp_path.glob("x-crash-*")
    assert b"seed" not in found.read_bytes()
