"""Every command in the docs is typed by some test, or says why not; those that need no cluster print what the docs show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.docs.commands import ROOT, Block, Exchange, blocks, pages

OFFLINE = [block for page in pages() for block in blocks(page, "run: dump")]
KNOWN = {"run", "run: dump"}


@pytest.mark.parametrize("page", pages())
def test_every_block_says_who_tries_it(page: str) -> None:
    for block in blocks(page):
        assert block.how in KNOWN or block.how.startswith("not run: "), block.place


@pytest.mark.parametrize("block", OFFLINE, ids=[block.place for block in OFFLINE])
def test_what_needs_no_cluster_prints_what_is_shown(block: Block) -> None:
    for exchange in block.exchanges:
        said = _typed(exchange)
        if exchange.shown:
            assert said == [line.rstrip() for line in exchange.shown]


def _typed(exchange: Exchange) -> list[str]:
    """Some of these exit with 1, as they find something wrong; 2 is a command that can't be typed so."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", exchange.command],
        env=os.environ | {"PATH": path, "KUBECONFIG": "/nonexistent"}, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode in {0, 1}, f"{exchange.command}: {done.stderr}"
    assert done.stdout, done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]
