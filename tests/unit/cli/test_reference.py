"""The reference in docs/ and the manual page match the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from zonewise.cli import reference
from zonewise.cli.main import COMMANDS, cli
from zonewise.cli.man import entries, manual

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r'^[A-Z_]+: Final = "(zonewise\.dev/[a-z-]+)"', re.MULTILINE)
REPORTERS = {"zonewise.dev/endpointslices", "zonewise.dev/csi"}
"""Reporting controllers of events: these names are on no object."""


def test_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/reference.md").read_text() == reference.reference(), "run `make reference`"


def test_reference_has_every_annotation_of_the_code() -> None:
    in_code = {name for path in (ROOT / "src").rglob("*.py") for name in NAMED.findall(path.read_text())}
    documented = {entry.name for entry in (*reference.USER_NAMES, *reference.SYSTEM_NAMES)}
    assert in_code - REPORTERS <= documented


def test_manual_has_every_command() -> None:
    commands = list(entries(cli, ("zonewise",)))
    assert {entry.path[1] for entry in commands if len(entry.path) > 1} == set(COMMANDS)
    printed = manual(commands)
    for entry in commands:
        assert entry.text, f"{entry.name} has no description"
        assert entry.usage.replace("-", r"\-") in printed


def test_manual_of_one_command() -> None:
    printed = CliRunner().invoke(cli, ["man", "lab", "up"]).output
    assert printed.startswith('.TH "ZONEWISE-LAB-UP" 1 ')
    assert r"\-\-kwok\-nodes" in printed
    assert ".SH COMMANDS" not in printed


def test_manual_of_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["man", "lap"])
    assert "no command 'lap'" in str(result.exception)


@pytest.mark.parametrize("text", [".TH begins a request", "'quoted", "a\\b", "--flag"])
def test_text_in_the_manual_is_escaped(text: str) -> None:
    entry = next(entries(cli, ("zonewise",)))
    printed = manual([type(entry)(entry.path, "zonewise", (text,), (), ())])
    assert not any(line.startswith((".TH begins", "'")) for line in printed.splitlines())


def test_groff_accepts_the_manual_without_warnings() -> None:
    """Skipped without groff, which every machine with man has."""
    groff = shutil.which("groff")
    if groff is not None:
        printed = manual(list(entries(cli, ("zonewise",))))
        checked = subprocess.run(
            [groff, "-man", "-ww", "-z", "-Tutf8", "-K", "utf8"],
            input=printed, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert checked.stderr == ""
