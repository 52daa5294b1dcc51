"""External errors are one line on stderr for every command, with exit code 1 or 2."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from zonewise.cli.main import cli, main

ZONEWISE = Path(sys.executable).with_name("zonewise")
SERVERS = {
    "controller": [],
    "dashboard": [],
    "dns": [],
    "proxy": [],
    "webhook": ["--service", "a/b"],
}
"""Servers: without an API server they wait for one."""
CSI_SERVERS = {"csi controller": [], "csi node": []}
"""Servers that read their own configuration first."""
CEPH_COMMANDS = {"csi doctor": [], "csi journal": []}
"""Commands that connect to Ceph, with the driver's configuration."""
OFFLINE = {"completion", "man"}
"""Commands that connect to nothing."""
CLUSTER_COMMANDS = {
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
"""Commands that connect to a cluster and end, with their required arguments."""
DUMP_COMMANDS = {
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
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        yield from leaves(subcommand, (*path, name))


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and stderr; stdout must be empty."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    output = capsys.readouterr()
    assert not output.out
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, output.err


def one_line(stderr: str) -> str:
    """Usage errors of click have two lines of help before."""
    lines = stderr.strip().splitlines()
    if lines[0].startswith("Usage:"):
        lines = lines[-1:]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


@pytest.fixture
def unreachable(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig whose server refuses connections: the port is bound, but not listening."""
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
    connecting = {name for name, command in leaves(cli) if "--kubeconfig" in options(command)}
    assert connecting == {*SERVERS, *CLUSTER_COMMANDS, *CSI_SERVERS}
    of_labs = {name for name, _ in leaves(cli) if name.startswith("lab ")}
    assert {name for name, _ in leaves(cli)} == connecting | of_labs | CEPH_COMMANDS.keys() | OFFLINE
    reading = {name for name, command in leaves(cli) if "--file" in options(command)}
    assert reading == set(DUMP_COMMANDS)


@pytest.mark.parametrize("name", [*SERVERS, *CLUSTER_COMMANDS])
def test_missing_kubeconfig_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [*name.split(), *(CLUSTER_COMMANDS.get(name) or SERVERS.get(name, []))]
    code, stderr = run([*arguments, "--kubeconfig", str(tmp_path / "none")], capsys)
    assert code == 2, stderr
    assert str(tmp_path / "none") in one_line(stderr)


@pytest.mark.parametrize("name", CSI_SERVERS)
def test_metrics_for_others_need_an_api_server(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "csi.json").write_text("[]")
    arguments = [*name.split(), "--orchestrator", "none", "--config", str(tmp_path / "csi.json"), "--metrics-port", "0"]
    code, stderr = run(arguments, capsys)
    assert code == 2, stderr
    assert "--metrics-port 0: no API server can review tokens here" in one_line(stderr)


@pytest.mark.parametrize("name", SERVERS)
def test_errors_are_json_where_lines_are(name: str, tmp_path: Path) -> None:
    """All that a collector of logs gets, also before the program runs."""
    arguments = [*name.split(), *SERVERS[name], "--kubeconfig", str(tmp_path / "none"), "--log-format", "json"]
    done = subprocess.run([ZONEWISE, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()][-1] == "command failed"


@pytest.mark.parametrize("name", CLUSTER_COMMANDS)
def test_unreachable_server_is_one_line(name: str, capsys: pytest.CaptureFixture[str], unreachable: Path) -> None:
    code, stderr = run([*name.split(), *CLUSTER_COMMANDS[name], "--kubeconfig", str(unreachable)], capsys)
    assert code == 1, stderr
    assert "127.0.0.1" in one_line(stderr)


@pytest.mark.parametrize("name", CLUSTER_COMMANDS)
def test_unknown_context_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str], unreachable: Path) -> None:
    arguments = [*name.split(), *CLUSTER_COMMANDS[name], "--kubeconfig", str(unreachable), "--context", "nowhere"]
    code, stderr = run(arguments, capsys)
    assert code == 2, stderr
    assert "nowhere" in one_line(stderr)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["zone-b"], "can't take over itself"),
        (["all", "zone-a"], "must be the only one"),
        (["rack=r1"], "is not a domain label"),
        (["zone a"], "zone a"),
    ],
)
def test_invalid_takeover_is_a_usage_error(
    targets: list[str], expected: str, capsys: pytest.CaptureFixture[str], unreachable: Path
) -> None:
    code, stderr = run(["csi", "takeover", "zone-b", *targets, "--kubeconfig", str(unreachable)], capsys)
    assert code == 2, stderr
    assert expected in one_line(stderr)


INVALID = {
    "not YAML": "a: [",
    "no objects": "hello",
    "not JSON": '{"kind": "List", ',
    "no known kind": '{"kind": "List", "items": [{"kind": "ConfigMap", "metadata": {"name": "x"}}]}',
    "empty": "",
    "invalid node": '{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": 7, "labels": []}}]}',
}


@pytest.mark.parametrize("case", INVALID)
@pytest.mark.parametrize("name", DUMP_COMMANDS)
def test_invalid_dump_names_the_file(name: str, case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "dump.yaml"
    file.write_text(INVALID[case])
    code, stderr = run([*name.split(), *DUMP_COMMANDS[name], "-f", str(file)], capsys)
    assert code in {1, 2}, stderr
    assert "dump.yaml" in one_line(stderr)


@pytest.mark.parametrize("name", DUMP_COMMANDS)
def test_missing_dump_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, stderr = run([*name.split(), *DUMP_COMMANDS[name], "-f", str(tmp_path / "none.yaml")], capsys)
    assert code == 2, stderr
    assert "none.yaml" in one_line(stderr)


@pytest.mark.parametrize("name", DUMP_COMMANDS)
def test_invalid_dump_on_stdin_is_a_usage_error(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [")))
    code, stderr = run([*name.split(), *DUMP_COMMANDS[name], "-f", "-"], capsys)
    assert code == 2, stderr
    assert "stdin" in one_line(stderr)


@pytest.mark.parametrize("name", [*CEPH_COMMANDS, *CSI_SERVERS])
def test_missing_configuration_names_the_file(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [
        *name.split(),
        *CEPH_COMMANDS.get(name, CSI_SERVERS.get(name, [])),
        "--config",
        str(tmp_path / "none.json"),
    ]
    code, stderr = run(arguments, capsys)
    assert code in {1, 2}, stderr
    assert "none.json" in one_line(stderr)


OWN_FLAGS = [name for name, command in leaves(cli) if not command.context_settings.get("ignore_unknown_options")]
"""Without those that pass unknown flags to another program."""


@pytest.mark.parametrize("name", OWN_FLAGS)
def test_unknown_flag_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, stderr = run([*name.split(), "--no-such-flag"], capsys)
    assert code == 2
    assert "no-such-flag" in one_line(stderr)


@pytest.mark.parametrize("name", [name for name, _ in leaves(cli)])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*name.split(), "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"zonewise {name}" in shown[shown.index("Example") :]


@pytest.mark.parametrize("name", [name for name, _ in leaves(cli)])
def test_examples_use_existing_flags(name: str) -> None:
    command = dict(leaves(cli))[name]
    lines = re.findall(rf"zonewise {name}(?= |$)(.*)", command.epilog or "", re.MULTILINE)
    used = {flag for line in lines for flag in re.findall(r"(?<= )--?[a-z][a-z-]*", re.split(r" -- | \| ", line)[0])}
    existing = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert used <= existing


WITHOUT_JSON = {
    "completion": "a script",
    "controller": "server",
    "csi controller": "server",
    "csi giveback": "prints the new takeover map in one line",
    "csi node": "server",
    "csi takeover": "prints the new takeover map in one line",
    "dashboard": "server",
    "dns": "server",
    "lab cut": "changes something",
    "lab down": "changes something",
    "lab exec": "runs another program",
    "lab heal": "changes something",
    "lab kubeconfig": "a path",
    "lab kubectl": "runs another program",
    "lab latency": "changes something",
    "lab load": "changes something",
    "lab logs": "a log",
    "lab setup": "changes something",
    "man": "a manual page",
    "proxy": "server; --explain is `explain service` for one proxy",
    "webhook": "server",
}
"""Commands without JSON output, and why."""


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
