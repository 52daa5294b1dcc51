"""The entry point: fast help, completion, and errors in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

import zonewise
from zonewise.cli.main import COMMANDS, cli, main
from zonewise.errors import UsageError, ZonewiseError


def test_help_names_every_command_and_imports_none() -> None:
    probe = (
        "import sys; from zonewise.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted(m for m in sys.modules if m.split('.')[0] in ('aiohttp', 'rich', 'msgspec', 'asyncio', 'yaml')))"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in COMMANDS)
    assert shown.endswith("[]\n"), "help must not pay for libraries that only a command needs"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_teaches(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output, "help that teaches shows an example"


def test_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"zonewise {zonewise.__version__}\n"


def test_unknown_command_suggests_the_nearest_one() -> None:
    result = CliRunner().invoke(cli, ["lap"])
    assert result.exit_code == 2
    assert "Did you mean 'lab'?" in result.output


@pytest.mark.parametrize(("error", "code"), [(ZonewiseError("no such zone"), 1), (UsageError("no such flag"), 2)])
def test_what_a_person_can_act_on_is_one_line(
    error: ZonewiseError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "main", fail)
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == code
    assert capsys.readouterr().err == f"zonewise: {error}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_ZONEWISE_COMPLETE" in result.output


def test_completion_completes() -> None:
    environment = {"_ZONEWISE_COMPLETE": "bash_complete", "COMP_WORDS": "zonewise la", "COMP_CWORD": "1"}
    probe = "import sys; from zonewise.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "plain,lab"
