"""The reference in docs/ and the manual page are of the code as it is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from zonewise.cli import reference
from zonewise.cli.main import COMMANDS, cli
from zonewise.cli.man import entries, page

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r'^[A-Z_]+: Final = "(zonewise\.dev/[a-z-]+)"', re.MULTILINE)
REPORTERS = {"zonewise.dev/endpointslices", "zonewise.dev/csi"}
"""Names under which events are written: they stand on no object."""


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs/reference.md").read_text() == reference.reference(), "run `make reference`"


def test_every_annotation_in_the_code_is_in_it() -> None:
    found = {name for path in (ROOT / "src").rglob("*.py") for name in NAMED.findall(path.read_text())}
    words = {word.name for word in (*reference.SAID_BY_YOU, *reference.SAID_BY_US)}
    assert found - REPORTERS <= words


def test_every_command_is_in_the_manual() -> None:
    found = list(entries(cli, ("zonewise",)))
    assert {entry.path[1] for entry in found if len(entry.path) > 1} == set(COMMANDS)
    printed = page(found)
    for entry in found:
        assert entry.text, f"{entry.name} says nothing"
        assert entry.usage.replace("-", r"\-") in printed


def test_the_manual_of_one_command() -> None:
    printed = CliRunner().invoke(cli, ["man", "lab", "up"]).output
    assert printed.startswith('.TH "ZONEWISE-LAB-UP" 1 ')
    assert r"\-\-kwok\-nodes" in printed
    assert ".SH COMMANDS" not in printed


def test_a_command_that_is_not_there() -> None:
    result = CliRunner().invoke(cli, ["man", "lap"])
    assert "no command 'lap'" in str(result.exception)


@pytest.mark.parametrize("text", [".TH begins a request", "'quoted", "a\\b", "--flag"])
def test_nothing_in_a_text_is_taken_for_a_request(text: str) -> None:
    entry = next(entries(cli, ("zonewise",)))
    printed = page([type(entry)(entry.path, "zonewise", (text,), (), ())])
    assert not any(line.startswith((".TH begins", "'")) for line in printed.splitlines())


def test_roff_has_no_complaint() -> None:
    """groff stands on every machine that has man; where it does not, nobody reads the page."""
    groff = shutil.which("groff")
    if groff is not None:
        printed = page(list(entries(cli, ("zonewise",))))
        checked = subprocess.run(
            [groff, "-man", "-ww", "-z", "-Tutf8", "-K", "utf8"],
            input=printed, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert checked.stderr == ""
