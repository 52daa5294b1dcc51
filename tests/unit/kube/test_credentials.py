"""Credential refresh: rotated files, and exec plugins (real scripts) whose credentials expire."""

import asyncio
import io
import json
import os
import pty
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from zonewise.kube.client.credentials import Credentials, Identity, credentials_of
from zonewise.kube.wire.access import BasicAuth, ExecPlugin, Interaction, StaticToken, TokenFile
from zonewise.kube.wire.errors import ConfigError, Unauthorized

V1 = "client.authentication.k8s.io/v1"


async def authorization(credentials: Credentials) -> str:
    return (await credentials.current()).authorization


@pytest.mark.parametrize(
    ("credential", "header"),
    [
        (None, ""),
        (StaticToken("t"), "Bearer t"),
        (BasicAuth("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
    ],
)
async def test_static_credentials_set_the_header(credential: StaticToken | BasicAuth | None, header: str) -> None:
    credentials = credentials_of(credential)
    identity = await credentials.current()
    assert identity == Identity(header)
    assert not credentials.refuse(identity)


async def test_rotated_token_file_is_reread(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    credentials = credentials_of(TokenFile(path))
    assert await authorization(credentials) == "Bearer first"
    path.write_text("")  # during a replacement
    assert await authorization(credentials) == "Bearer first"
    path.write_text("the-second")
    assert await authorization(credentials) == "Bearer the-second"


async def test_refused_file_token_is_retried_only_if_changed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    credentials = credentials_of(TokenFile(path))
    refused = await credentials.current()
    assert not credentials.refuse(refused)
    path.write_text("second")
    assert credentials.refuse(refused)


async def test_inline_token_is_used_while_the_file_is_missing(tmp_path: Path) -> None:
    credentials = credentials_of(TokenFile(tmp_path / "token", fallback="inline"))
    assert await authorization(credentials) == "Bearer inline"
    (tmp_path / "token").write_text("from-file")
    assert await authorization(credentials) == "Bearer from-file"


async def test_token_file_without_a_token_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token cannot be read"):
        await credentials_of(TokenFile(tmp_path / "token")).current()
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match=r"token file .*token does not hold one token"):
        await credentials_of(TokenFile(tmp_path / "token")).current()
    (tmp_path / "token").write_bytes(b"two\nlines\xff")
    with pytest.raises(ConfigError, match="does not hold one token"):
        await credentials_of(TokenFile(tmp_path / "token")).current()


def credential(**status: Any) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


class Plugin:
    """Exec plugin script that counts its runs and prints the file `output`."""

    def __init__(self, folder: Path, script: str = "") -> None:
        self.folder = folder
        path = folder / "plugin"
        path.write_text(
            f'#!/bin/sh\ncd {folder}\necho x >> runs\nprintf %s "$KUBERNETES_EXEC_INFO" > info\n{script or "cat output"}\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def gives(self, **status: Any) -> None:
        self.prints(credential(**status))

    def prints(self, text: str) -> None:
        (self.folder / "output").write_text(text, errors="surrogateescape")

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def exec_info(self) -> Any:
        return json.loads((self.folder / "info").read_text())

    def exec(self, **options: Any) -> ExecPlugin:
        options = {"api_version": V1, "interaction": Interaction.NEVER, **options}
        return ExecPlugin(command=str(self.folder / "plugin"), **options)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def test_plugin_runs_once_for_concurrent_callers(plugin: Plugin) -> None:
    plugin.gives(token="t")
    credentials = credentials_of(plugin.exec())
    identities = await asyncio.gather(*(credentials.current() for _ in range(5)))
    assert {identity.authorization for identity in identities} == {"Bearer t"}
    assert plugin.runs == 1


@pytest.mark.parametrize(("lasts", "runs"), [(timedelta(hours=1), 1), (timedelta(hours=-1), 2)])
async def test_plugin_credential_is_cached_until_it_expires(plugin: Plugin, lasts: timedelta, runs: int) -> None:
    plugin.gives(token="t", expirationTimestamp=(datetime.now(UTC) + lasts).isoformat())
    credentials = credentials_of(plugin.exec())
    await credentials.current()
    await credentials.current()
    assert plugin.runs == runs


async def test_refused_credential_runs_the_plugin_again(plugin: Plugin) -> None:
    plugin.gives(token="first")
    credentials = credentials_of(plugin.exec())
    refused = await credentials.current()
    plugin.gives(token="second")
    assert credentials.refuse(refused)
    assert await authorization(credentials) == "Bearer second"


async def test_late_refusal_of_an_old_credential_keeps_the_new(plugin: Plugin) -> None:
    plugin.gives(token="first")
    credentials = credentials_of(plugin.exec())
    refused = await credentials.current()
    plugin.gives(token="second")
    credentials.refuse(refused)
    await credentials.current()
    assert credentials.refuse(refused)
    await credentials.current()
    assert plugin.runs == 2


async def test_plugin_may_return_a_certificate(plugin: Plugin) -> None:
    issued = trustme.CA().issue_cert("me@example.com")
    certificate, key = issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()
    plugin.gives(clientCertificateData=certificate.decode(), clientKeyData=key.decode())
    assert await credentials_of(plugin.exec()).current() == Identity("", certificate + b"\n" + key)


async def test_plugin_gets_its_exec_info(plugin: Plugin) -> None:
    plugin.gives(token="t")
    await credentials_of(plugin.exec()).current()
    assert plugin.exec_info == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    await credentials_of(plugin.exec(cluster={"server": "https://api"}, authority=b"pem")).current()
    cluster_info = {"server": "https://api", "certificate-authority-data": "cGVt"}
    assert plugin.exec_info["spec"] == {"interactive": False, "cluster": cluster_info}
    await credentials_of(plugin.exec(cluster={"server": "https://api"})).current()
    assert plugin.exec_info["spec"]["cluster"] == {"server": "https://api"}


async def test_plugin_gets_its_arguments_and_environment(tmp_path: Path) -> None:
    output = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "@"}})
    plugin = Plugin(tmp_path, f"echo '{output}' | sed \"s/@/$1-$WHO/\"")
    credentials = credentials_of(plugin.exec(arguments=("first",), environment=(("WHO", "me"),)))
    assert await authorization(credentials) == "Bearer first-me"


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("no JSON", "printed no ExecCredential"),
        ('{"kind": "Pod"}', "printed Pod ; expected ExecCredential client.authentication.k8s.io/v1"),
        ("{}", "printed no kind"),
        (
            '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1"}',
            "printed ExecCredential client.authentication.k8s.io/v1beta1; expected",
        ),
        ('{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1"}', "neither a token nor"),
        (
            '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"clientKeyData": "k"}}',
            "half of a client certificate and key",
        ),
        (credential(clientCertificateData="c", clientKeyData="k"), "client certificate and key do not work together"),
        (credential(token="a\nb"), "a token with spaces or line breaks"),
        (credential(token="t", expirationTimestamp="2030-01-01T00:00:00"), "printed no ExecCredential"),
        ('{"kind": "\udcff"}', "printed no ExecCredential"),
    ],
)
async def test_bad_plugin_output_is_reported_and_retried(plugin: Plugin, output: str, says: str) -> None:
    credentials = credentials_of(plugin.exec())
    plugin.prints(output)
    with pytest.raises(Unauthorized, match=says):
        await credentials.current()
    plugin.gives(token="t")
    assert await authorization(credentials) == "Bearer t"


async def test_failed_plugin_is_run_again(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "[ -f output ] || { echo 'log in first' >&2; exit 3; }; cat output")
    credentials = credentials_of(plugin.exec())
    with pytest.raises(Unauthorized, match="failed with exit code 3: log in first"):
        await credentials.current()
    plugin.gives(token="t")
    assert await authorization(credentials) == "Bearer t"


async def test_missing_plugin_is_tried_again(tmp_path: Path) -> None:
    command = str(tmp_path / "plugin")
    credentials = credentials_of(ExecPlugin(command=command, api_version=V1, install_hint="apt install get-token"))
    with pytest.raises(Unauthorized, match="cannot be started: No such file or directory; apt install get-token"):
        await credentials.current()
    Plugin(tmp_path).gives(token="t")
    assert await authorization(credentials) == "Bearer t"


async def test_missing_ca_file_fails_only_the_call(plugin: Plugin, tmp_path: Path) -> None:
    plugin.gives(token="t")
    credentials = credentials_of(plugin.exec(cluster={"server": "https://api"}, authority=tmp_path / "ca"))
    with pytest.raises(Unauthorized, match="ca cannot be read"):
        await credentials.current()
    (tmp_path / "ca").write_bytes(b"pem")
    assert await authorization(credentials) == "Bearer t"


async def test_hanging_plugin_ends_with_the_call(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    plugin = Plugin(tmp_path, "echo $$ > pid; exec sleep 600")
    waiting = asyncio.create_task(credentials_of(plugin.exec()).current())
    pid = await asyncio.to_thread(lambda: (tmp_path / "pid").read_text().strip())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_interactive_plugin_needs_a_terminal(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    with io.StringIO() as nowhere:
        monkeypatch.setattr(sys, "stdin", nowhere)
        with pytest.raises(Unauthorized, match="needs a terminal"):
            await credentials_of(plugin.exec(interaction=Interaction.ALWAYS)).current()
        plugin.gives(token="t")
        assert await authorization(credentials_of(plugin.exec(interaction=Interaction.IF_AVAILABLE))) == "Bearer t"
    assert plugin.exec_info["spec"] == {"interactive": False}


async def test_interactive_plugin_runs_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(tmp_path)
    plugin.gives(token="t")
    leader, follower = pty.openpty()
    with os.fdopen(follower) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        await credentials_of(plugin.exec(interaction=Interaction.ALWAYS)).current()
    os.close(leader)
    assert plugin.exec_info["spec"] == {"interactive": True}
