"""What goes wrong outside of us is said in one line, by every command alike, with an exit code that says whose turn it is."""

from __future__ import annotations

import io
import re
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
DRIVER = {"csi controller": [], "csi node": []}
"""They look at their own configuration first."""
OF_CEPH = {"csi doctor": [], "csi journal": []}
"""Those that ask Ceph, by the driver's configuration."""
OF_NOBODY = {"completion", "man"}
"""Those that ask nobody."""
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
    "dashboard": ["--port", "0"],
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


def test_every_command_is_in_the_tables() -> None:
    asking = {name for name, command in leaves(cli) if "--kubeconfig" in options(command)}
    assert asking == {*PROGRAMS, *QUESTIONS, *DRIVER}
    of_labs = {name for name, _ in leaves(cli) if name.startswith("lab ")}
    assert {name for name, _ in leaves(cli)} == asking | of_labs | OF_CEPH.keys() | OF_NOBODY
    reading = {name for name, command in leaves(cli) if "--file" in options(command)}
    assert reading == set(OF_DUMPS)


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


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["zone-b"], "can't take over itself"),
        (["all", "zone-a"], "must be the only one"),
        (["rack=r1"], "is not a domain label"),
        (["zone a"], "zone a"),
    ],
)
def test_a_takeover_that_no_map_can_say(
    targets: list[str], expected: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    code, said = run(["csi", "takeover", "zone-b", *targets, "--kubeconfig", str(elsewhere)], capsys)
    assert code == 2, said
    assert expected in one_line(said)


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


@pytest.mark.parametrize("name", [*OF_CEPH, *DRIVER])
def test_a_configuration_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*name.split(), *OF_CEPH.get(name, DRIVER.get(name, [])), "--config", str(tmp_path / "none.json")]
    code, said = run(words, capsys)
    assert code in {1, 2}, said
    assert "none.json" in one_line(said)


OWN_FLAGS = [name for name, command in leaves(cli) if not command.context_settings.get("ignore_unknown_options")]
"""All but those that pass on what they don't know to another program."""


@pytest.mark.parametrize("name", OWN_FLAGS)
def test_a_flag_that_nobody_knows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run([*name.split(), "--no-such-flag"], capsys)
    assert code == 2
    assert "no-such-flag" in one_line(said)


@pytest.mark.parametrize("name", [name for name, _ in leaves(cli)])
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*name.split(), "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"zonewise {name}" in shown[shown.index("Example") :]


@pytest.mark.parametrize("name", [name for name, _ in leaves(cli)])
def test_examples_have_flags_that_there_are(name: str) -> None:
    command = dict(leaves(cli))[name]
    lines = re.findall(rf"zonewise {name}(?= |$)(.*)", command.epilog or "", re.MULTILINE)
    said = {flag for line in lines for flag in re.findall(r"(?<= )--?[a-z][a-z-]*", re.split(r" -- | \| ", line)[0])}
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert said <= known


WITHOUT_JSON = {
    "completion": "a script",
    "controller": "goes on",
    "csi controller": "goes on",
    "csi giveback": "changes something, and says in a line what holds now",
    "csi node": "goes on",
    "csi takeover": "changes something, and says in a line what holds now",
    "dashboard": "goes on",
    "dns": "goes on",
    "lab cut": "changes something",
    "lab down": "changes something",
    "lab exec": "becomes another program",
    "lab heal": "changes something",
    "lab kubeconfig": "a path",
    "lab kubectl": "becomes another program",
    "lab latency": "changes something",
    "lab logs": "what a process wrote",
    "lab setup": "changes something",
    "man": "a manual page",
    "proxy": "goes on; --explain is `explain service` for one proxy",
    "uninstall": "changes something",
    "webhook": "goes on",
}
"""Commands that print no data, and why."""


def test_every_command_that_prints_data_prints_json() -> None:
    printing = {
        name
        for name, command in leaves(cli)
        for parameter in command.params
        if "--output" in parameter.opts and isinstance(parameter.type, click.Choice)
        if "json" in parameter.type.choices
    }
    assert {name for name, _ in leaves(cli)} == printing | WITHOUT_JSON.keys()
    assert not printing & WITHOUT_JSON.keys()
