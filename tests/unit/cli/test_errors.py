"""What goes wrong outside of us is said in one line, by every command alike, with an exit code that says whose turn it is."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from zonewise.cli.main import cli, main

PROGRAMS = {
    "controller": [],
    "dashboard": [],
    "dns": [],
    "proxy": [],
    "webhook": ["--service", "a/b"],
}
"""Those that go on: without a server they wait for one."""
DRIVER = {"csi controller", "csi node"}
"""They look at their own configuration first."""
QUESTIONS = {
    "csi giveback": ["zone=a"],
    "csi takeover": ["zone=a", "zone=b"],
    "doctor": [],
    "drain": ["--plan", "n1"],
    "explain dns": ["db.shop"],
    "explain eviction": ["web-0"],
    "explain service": ["shop/web"],
    "explain volume": ["shop/data"],
    "install": [],
    "plan": [],
    "proxy": ["--explain", "shop/web"],
    "simulate": ["--from-cluster"],
    "status": [],
    "uninstall": ["--yes"],
}
"""Those that ask a cluster something and end, with what they can't do without."""
OF_DUMPS = {
    "doctor": [],
    "explain service": ["shop/web"],
    "plan": [],
    "simulate": [],
    "status": [],
}


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what was said on stderr; nothing may be said on stdout."""
    with pytest.raises(SystemExit) as left:
        main(words)
    shown = capsys.readouterr()
    assert not shown.out
    assert isinstance(left.value.code, int)
    return left.value.code, shown.err


def one_line(said: str) -> str:
    """Usage errors of click have two lines of help before."""
    lines = said.strip().splitlines()
    if lines[0].startswith("Usage:"):
        lines = lines[-1:]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    return lines[0]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig whose server refuses connections: its port is taken, and nobody listens there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        file = tmp_path / "config"
        file.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{held.getsockname()[1]}"}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        yield file


def test_every_command_that_asks_a_cluster_is_in_the_tables() -> None:
    asking = {name for name, command in leaves(cli) if "--kubeconfig" in options(command)}
    assert asking == {*PROGRAMS, *QUESTIONS, *DRIVER}
    reading = {name for name, command in leaves(cli) if "--file" in options(command)}
    assert reading - {"dashboard"} == set(OF_DUMPS)


@pytest.mark.parametrize("name", [*PROGRAMS, *QUESTIONS])
def test_a_kubeconfig_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*name.split(), *(QUESTIONS.get(name) or PROGRAMS.get(name, []))]
    code, said = run([*words, "--kubeconfig", str(tmp_path / "none")], capsys)
    assert code == 2, said
    assert str(tmp_path / "none") in one_line(said)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_server_that_is_away(name: str, capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    code, said = run([*name.split(), *QUESTIONS[name], "--kubeconfig", str(elsewhere)], capsys)
    assert code == 1, said
    assert "127.0.0.1" in one_line(said)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_context_that_nobody_knows(name: str, capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    words = [*name.split(), *QUESTIONS[name], "--kubeconfig", str(elsewhere), "--context", "nowhere"]
    code, said = run(words, capsys)
    assert code == 2, said
    assert "nowhere" in one_line(said)


BROKEN = {
    "not YAML": "a: [",
    "no objects": "hello",
    "not JSON": '{"kind": "List", ',
    "a list of something else": '{"kind": "List", "items": [{"kind": "ConfigMap", "metadata": {"name": "x"}}]}',
    "empty": "",
    "a node that is none": '{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": 7, "labels": []}}]}',
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("name", OF_DUMPS)
def test_a_broken_dump(name: str, what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "dump.yaml"
    file.write_text(BROKEN[what])
    code, said = run([*name.split(), *OF_DUMPS[name], "-f", str(file)], capsys)
    assert code in {1, 2}, said
    assert "dump.yaml" in one_line(said)


@pytest.mark.parametrize("name", OF_DUMPS)
def test_a_dump_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = run([*name.split(), *OF_DUMPS[name], "-f", str(tmp_path / "none.yaml")], capsys)
    assert code == 2, said
    assert "none.yaml" in one_line(said)


@pytest.mark.parametrize("name", OF_DUMPS)
def test_a_broken_dump_on_stdin(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [")))
    code, said = run([*name.split(), *OF_DUMPS[name], "-f", "-"], capsys)
    assert code == 2, said
    assert "stdin" in one_line(said)


def test_every_command_shows_an_example_or_stands_in_a_group_that_does() -> None:
    for name, command in leaves(cli):
        if not name.startswith("lab "):
            assert "Example" in (command.epilog or ""), name
