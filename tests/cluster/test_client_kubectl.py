"""kubectl as the oracle: the same kubeconfig must make us send what kubectl sends.

Both talk to a TLS server of the test's own that records who came: headers, client certificate, server name asked for.
Every user here has some credential, because kubectl asks at the terminal for what is missing.
"""

import asyncio
import io
import json
import os
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, ConfigError
from zonewise.lab.controlplane.controlplane import ControlPlane

AUTHORITY = trustme.CA()
SERVER = AUTHORITY.issue_cert("127.0.0.1", "localhost", "api.example.com")
ALICE = AUTHORITY.issue_cert("alice@example.com", common_name="alice")
ALICE_CERTIFICATE = b"".join(blob.bytes() for blob in ALICE.cert_chain_pems).decode()
ALICE_KEY = ALICE.private_key_pem.bytes().decode()
V1 = "client.authentication.k8s.io/v1"
VERSION = b'{"gitVersion":"v1.0.0"}'


@dataclass(frozen=True)
class Visit:
    path: str
    identity: tuple[tuple[str, str], ...]
    """Authorization and Impersonate-* headers."""
    certificate: str
    """The common name of the client's certificate."""
    asked_for: str
    """The server name in the handshake; none for an address."""


@dataclass
class Recorder:
    port: int = 0
    visits: list[Visit] = field(default_factory=list)
    asked_for: str = ""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        SERVER.configure_cert(context)
        AUTHORITY.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.sni_callback = self._note_name
        return context

    def _note_name(self, _socket: Any, name: str | None, _context: Any) -> None:
        self.asked_for = name or ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = [line.partition(": ") for line in head[1:] if line]
        named = sorted((name.lower(), value) for name, _, value in headers)
        identity = [(name, value) for name, value in named if name.startswith(("authorization", "impersonate"))]
        shown = writer.get_extra_info("peercert") or {}
        subject = {name: value for ((name, value),) in shown.get("subject", ())}
        self.visits.append(
            Visit(
                path=head[0].split()[1],
                identity=tuple(identity),
                certificate=subject.get("commonName", ""),
                asked_for=self.asked_for,
            )
        )
        answer = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(VERSION)}\r\n\r\n"
        writer.write(answer.encode() + VERSION)
        await writer.drain()
        writer.close()


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    recorder = Recorder()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0, ssl=recorder.context())
    recorder.port = server.sockets[0].getsockname()[1]
    yield recorder
    server.close()
    await server.wait_closed()


def entry(kind: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, kind: body}


def document(cluster: dict[str, Any], user: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [
            entry("cluster", "c", {"server": "https://127.0.0.1:@PORT@", "certificate-authority": "ca", **cluster})
        ],
        "users": [entry("user", "u", user)],
        "contexts": [entry("context", "it", {"cluster": "c", "user": "u"})],
        **rest,
    }


def write(folder: Path, port: int, files: list[dict[str, Any]]) -> str:
    """The kubeconfigs, each in a directory of its own with all that they may name. Returns KUBECONFIG."""
    paths = []
    for number, file in enumerate(files):
        place = folder / str(number)
        place.mkdir()
        (place / "ca").write_bytes(AUTHORITY.cert_pem.bytes())
        (place / "crt").write_text(ALICE_CERTIFICATE)
        (place / "key").write_text(ALICE_KEY)
        (place / "token").write_text(f"file-token-{number}\n")
        (place / "plugin").write_text(PLUGIN)
        (place / "plugin").chmod(stat.S_IRWXU)
        (place / "config").write_text(yaml.safe_dump(file).replace("@PORT@", str(port)))
        paths.append(str(place / "config"))
    return ":".join(paths)


# Prints a token, and notes beside itself what it was told.
PLUGIN = """#!/bin/sh
printf %s "$KUBERNETES_EXEC_INFO" > "$(dirname "$0")/told"
version=$(printf %s "$KUBERNETES_EXEC_INFO" | sed 's/.*"apiVersion":"\\([^"]*\\)".*/\\1/')
echo '{"apiVersion":"'$version'","kind":"ExecCredential","status":{"token":"'"exec-$1-$WHO"'"}}'
"""
EXEC = {"command": "./plugin", "apiVersion": V1, "interactiveMode": "Never"}

CASES: dict[str, list[dict[str, Any]]] = {
    "token": [document({}, {"token": "t"})],
    "token file": [document({}, {"tokenFile": "token"})],
    "token and token file": [document({}, {"token": "t", "tokenFile": "token"})],
    "password": [document({}, {"username": "u", "password": "pä"})],
    "certificate": [document({}, {"client-certificate": "crt", "client-key": "key"})],
    "certificate and token": [document({}, {"client-certificate": "crt", "client-key": "key", "token": "t"})],
    "impersonation": [
        document(
            {}, {"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-user-extra": {"example.com/x": ["1", "2"]}}
        )
    ],
    "exec": [document({}, {"exec": {**EXEC, "args": ["one"], "env": [{"name": "WHO", "value": "me"}]}})],
    "exec v1beta1": [document({}, {"exec": {"command": "./plugin", "apiVersion": f"{V1}beta1"}})],
    "exec next to a token": [document({}, {"token": "t", "exec": EXEC})],
    "exec next to a password": [document({}, {"username": "u", "password": "p", "exec": EXEC})],
    "exec that is told of the cluster": [
        document(
            {
                "tls-server-name": "api.example.com",
                "disable-compression": True,
                "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
            },
            {"exec": {**EXEC, "provideClusterInfo": True}},
        )
    ],
    "server name": [document({"tls-server-name": "api.example.com"}, {"token": "t"})],
    "host name": [document({"server": "https://localhost:@PORT@"}, {"token": "t"})],
    "below a path": [document({"server": "https://127.0.0.1:@PORT@/k8s/clusters/c-1/"}, {"token": "t"})],
    "insecure": [document({"certificate-authority": "", "insecure-skip-tls-verify": True}, {"token": "t"})],
    "two files": [
        document({}, {"token": "first"}, **{"current-context": ""}),
        document({"server": "https://localhost:@PORT@"}, {"token": "second", "as": "jane"}),
    ],
    "current context of the first": [
        document({}, {"token": "first"}),
        document(
            {},
            {},
            contexts=[entry("context", "other", {"cluster": "c", "user": "o"})],
            users=[entry("user", "o", {"tokenFile": "token"})],
        )
        | {"current-context": "other"},
    ],
    "relative paths of the second": [
        document({}, {}, users=[], contexts=[], **{"current-context": "other"}),
        document(
            {},
            {},
            clusters=[],
            contexts=[entry("context", "other", {"cluster": "c", "user": "o"})],
            users=[entry("user", "o", {"tokenFile": "token", "client-certificate": "crt", "client-key": "key"})],
        ),
    ],
}
REFUSED: dict[str, list[dict[str, Any]]] = {
    "untrusted": [document({"certificate-authority": ""}, {"token": "t"})],
    "two ways to log in": [document({}, {"token": "t", "username": "u", "password": "p"})],
    "twice the same name": [document({}, {}, users=[entry("user", "u", {}), entry("user", "u", {"token": "t"})])],
    "certificate without a key": [document({}, {"client-certificate": "crt"})],
    "insecure with a CA": [document({"insecure-skip-tls-verify": True}, {})],
    "no such context": [document({}, {}, **{"current-context": "none"})],
    "no such cluster": [document({}, {}, clusters=[])],
    "groups of nobody": [document({}, {"as-groups": ["a"]})],
    "exec without a version": [document({}, {"exec": {"command": "./plugin", "interactiveMode": "Never"}})],
    "exec without a mode": [document({}, {"exec": {"command": "./plugin", "apiVersion": V1}})],
    "exec that is missing": [document({}, {"exec": {**EXEC, "command": "./none"}})],
    "a number for a token": [document({}, {"token": 5})],
}


@dataclass(frozen=True)
class Outcome:
    visit: Visit | None
    told: Any


async def with_kubectl(cluster: ControlPlane, recorder: Recorder, environment: dict[str, str]) -> Visit | None:
    kubectl = await asyncio.create_subprocess_exec(
        cluster.binaries / "kubectl",
        "get",
        "--raw",
        "/version",
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, _ = await kubectl.communicate()
    assert (kubectl.returncode == 0) == (output == VERSION)
    return recorder.visits.pop() if kubectl.returncode == 0 else None


async def with_ours(recorder: Recorder, environment: dict[str, str]) -> Visit | None:
    try:
        async with Client(kubeconfig.load(environment=environment)) as client:
            await client.version()
    except (ConfigError, ApiError):
        return None
    return recorder.visits.pop()


def what_the_plugin_was_told(folder: Path) -> Any:
    notes = list(folder.glob("*/told"))
    return [json.loads(note.read_text()) for note in notes]


@pytest.mark.parametrize("case", CASES | REFUSED)
async def test_we_send_what_kubectl_sends(
    cluster: ControlPlane, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # kubectl has no terminal either
    paths = write(tmp_path, recorder.port, (CASES | REFUSED)[case])
    environment = {"KUBECONFIG": paths, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    expected = Outcome(await with_kubectl(cluster, recorder, environment), what_the_plugin_was_told(tmp_path))
    got = Outcome(await with_ours(recorder, environment), what_the_plugin_was_told(tmp_path))
    assert got == expected
    assert (got.visit is None) == (case in REFUSED)
