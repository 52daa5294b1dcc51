"""Entry point: fast help, completion, and one-line errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import pytest
from click.testing import CliRunner

import zonewise
from zonewise.cli.main import COMMANDS, cli, main
from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import state
from zonewise.lab.state import Lab, LabOptions


def test_help_names_every_command_and_imports_none() -> None:
    probe = (
        "import sys; from zonewise.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted(m for m in sys.modules if m.split('.')[0] in ('aiohttp', 'rich', 'msgspec', 'asyncio', 'yaml')))"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in COMMANDS)
    assert shown.endswith("[]\n"), "--help must not import libraries that only commands need"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output


def test_version_is_printed() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"zonewise {zonewise.__version__}\n"


def test_unknown_command_suggests_the_closest_match() -> None:
    result = CliRunner().invoke(cli, ["lap"])
    assert result.exit_code == 2
    assert "Did you mean 'lab'?" in result.output


FAILURE: list[Exception] = []
"""`zonewise fail` raises the last one."""


@click.command()
def fail() -> None:
    """Registered as a command by the fixture `failing`."""
    raise FAILURE[-1]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "failing_command", sys.modules[__name__])
    monkeypatch.setitem(COMMANDS, "fail", ("failing_command:fail", "Fail."))


MESSAGES = {
    "error": (ZonewiseError("no such zone"), 1, "no such zone"),
    "usage error": (UsageError("no such flag"), 2, "no such flag"),
    "OSError with a file": (
        PermissionError(errno.EACCES, "Permission denied", "/proc/x"),
        1,
        "/proc/x: Permission denied",
    ),
    "OSError without a file": (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
    "OSError without an errno": (TimeoutError("timed out"), 1, "timed out"),
    "program timeout": (subprocess.TimeoutExpired(["ip"], 60), 1, "Command '['ip']' timed out after 60 seconds"),
}


@pytest.mark.parametrize(("error", "code", "message"), MESSAGES.values(), ids=MESSAGES)
@pytest.mark.usefixtures("failing")
def test_error_is_one_line_with_its_exit_code(
    error: Exception, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    FAILURE.append(error)
    with pytest.raises(SystemExit) as exit_:
        main(["fail"])
    assert exit_.value.code == code
    assert capsys.readouterr().err == f"zonewise: {message}\n"


@pytest.mark.usefixtures("failing")
def test_bugs_and_debug_mode_show_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    FAILURE.append(KeyError("bug"))
    with pytest.raises(KeyError):
        main(["fail"])
    FAILURE.append(ZonewiseError("shown with a traceback"))
    monkeypatch.setenv("ZONEWISE_DEBUG", "1")
    with pytest.raises(ZonewiseError):
        main(["fail"])


REFUSED = {
    "state directory can't be created": (["up", "--zones", "0"], {"ZONEWISE_STATE": "/proc/x"}, "/proc/x"),
    "state directory is a file": (["status"], {"ZONEWISE_STATE": "/etc/passwd"}, "/etc/passwd"),
    "cache can't be created": (["up", "--zones", "0"], {"ZONEWISE_CACHE": "/proc/x"}, "/proc/x"),
}


@pytest.mark.parametrize(("arguments", "environment", "path"), REFUSED.values(), ids=REFUSED)
def test_file_system_error_is_one_line(
    arguments: list[str], environment: dict[str, str], path: str, tmp_path: Path
) -> None:
    done = _zonewise(["lab", *arguments], {"ZONEWISE_STATE": str(tmp_path), **environment})
    assert done.returncode == 1
    assert done.stderr.startswith(f"zonewise: {path}")
    assert len(done.stderr.splitlines()) == 1


def test_full_disk_is_an_error_and_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    (tmp_path / "labs" / "one").mkdir(parents=True)
    environment = {"ZONEWISE_STATE": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = _zonewise(["lab", "list"], environment, full)
    assert (done.returncode, done.stderr) == (1, "zonewise: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = _zonewise(["lab", "list"], environment, pipe)
    assert (done.returncode, done.stderr) == (1, "")


def _zonewise(
    arguments: list[str], environment: dict[str, str], output: IO[str] | int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    probe = "from zonewise.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", probe, *arguments],
        env={**os.environ, **environment},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_ZONEWISE_COMPLETE" in result.output


COMPLETED = {
    "command": ("la", ["lab"]),
    "lab": ("lab status --name o", ["one", "other"]),
    "zone": ("lab cut --name one zone-", ["zone-a", "zone-b"]),
    "second zone": ("lab latency --name one zone-a zone-", ["zone-b"]),
    "zone of a missing lab": ("lab heal zone-", []),
    "zone of an invalid lab name": ("lab heal --name Big zone-", []),
}


@pytest.mark.parametrize(("line", "expected"), COMPLETED.values(), ids=COMPLETED)
def test_completion_suggests(line: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_STATE", str(tmp_path))
    for name in ("one", "other"):
        directory = state.directory_of(name)
        directory.mkdir(parents=True)
        options = LabOptions(zones=("zone-a", "zone-b"))
        Lab(name=name, directory=directory, slot=0, binaries=tmp_path, options=options).save()
    words = ["zonewise", *line.split()]
    environment = {
        "_ZONEWISE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = _zonewise([], environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [f"plain,{word}" for word in expected]
