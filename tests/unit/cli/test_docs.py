"""Commands in the docs: each says which test runs it, and those that need no cluster print what the docs show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.docs.commands import ROOT, Block, Exchange, blocks, pages

OFFLINE = [block for page in pages() for block in blocks(page, "run: dump")]
MARKERS = {"run", "run: dump"}


@pytest.mark.parametrize("page", pages())
def test_every_block_has_a_marker(page: str) -> None:
    for block in blocks(page):
        assert block.marker in MARKERS or block.marker.startswith("not run: "), block.location


@pytest.mark.parametrize("block", OFFLINE, ids=[block.location for block in OFFLINE])
def test_offline_commands_print_what_the_docs_show(block: Block) -> None:
    for exchange in block.exchanges:
        lines = _output(exchange)
        if exchange.shown:
            assert lines == [line.rstrip() for line in exchange.shown]


def _output(exchange: Exchange) -> list[str]:
    """Exit code 1 is a finding of the command; 2 would be a usage error."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", exchange.command],
        env=os.environ | {"PATH": path, "KUBECONFIG": "/nonexistent"}, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode in {0, 1}, f"{exchange.command}: {done.stderr}"
    assert done.stdout, done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]
