"""Client compared with kubectl: the same kubeconfig must produce the same request.

Both talk to a TLS server of the test that records headers, client certificate and SNI server name. Every user here has
some credential, because kubectl prompts at the terminal for missing ones.
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
class RecordedRequest:
    path: str
    identity: tuple[tuple[str, str], ...]
    """Authorization and Impersonate-* headers."""
    certificate: str
    """Common name of the client certificate."""
    server_name: str
    """SNI server name; empty for an address."""


@dataclass
class Recorder:
    port: int = 0
    requests: list[RecordedRequest] = field(default_factory=list)
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        SERVER.configure_cert(context)
        AUTHORITY.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.sni_callback = self._record_server_name
        return context

    def _record_server_name(self, _socket: Any, name: str | None, _context: Any) -> None:
        self.server_name = name or ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = [line.partition(": ") for line in head[1:] if line]
        named = sorted((name.lower(), value) for name, _, value in headers)
        identity = [(name, value) for name, value in named if name.startswith(("authorization", "impersonate"))]
        peer_certificate = writer.get_extra_info("peercert") or {}
        subject = {name: value for ((name, value),) in peer_certificate.get("subject", ())}
        self.requests.append(
            RecordedRequest(
                path=head[0].split()[1],
                identity=tuple(identity),
                certificate=subject.get("commonName", ""),
                server_name=self.server_name,
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
    """Write each kubeconfig to its own directory with all files it may name. Returns KUBECONFIG."""
    paths = []
    for number, file in enumerate(files):
        directory = folder / str(number)
        directory.mkdir()
        (directory / "ca").write_bytes(AUTHORITY.cert_pem.bytes())
        (directory / "crt").write_text(ALICE_CERTIFICATE)
        (directory / "key").write_text(ALICE_KEY)
        (directory / "token").write_text(f"file-token-{number}\n")
        (directory / "plugin").write_text(PLUGIN)
        (directory / "plugin").chmod(stat.S_IRWXU)
        (directory / "config").write_text(yaml.safe_dump(file).replace("@PORT@", str(port)))
        paths.append(str(directory / "config"))
    return ":".join(paths)


# Prints a token, and stores KUBERNETES_EXEC_INFO beside itself.
PLUGIN = """#!/bin/sh
printf %s "$KUBERNETES_EXEC_INFO" > "$(dirname "$0")/exec-info"
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
    "exec with cluster info": [
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
    "groups without a user": [document({}, {"as-groups": ["a"]})],
    "exec without a version": [document({}, {"exec": {"command": "./plugin", "interactiveMode": "Never"}})],
    "exec without a mode": [document({}, {"exec": {"command": "./plugin", "apiVersion": V1}})],
    "exec that is missing": [document({}, {"exec": {**EXEC, "command": "./none"}})],
    "a number for a token": [document({}, {"token": 5})],
}


@dataclass(frozen=True)
class Outcome:
    request: RecordedRequest | None
    exec_info: Any


async def with_kubectl(
    cluster: ControlPlane, recorder: Recorder, environment: dict[str, str]
) -> RecordedRequest | None:
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
    return recorder.requests.pop() if kubectl.returncode == 0 else None


async def with_our_client(recorder: Recorder, environment: dict[str, str]) -> RecordedRequest | None:
    try:
        async with Client(kubeconfig.load(environment=environment)) as client:
            await client.version()
    except (ConfigError, ApiError):
        return None
    return recorder.requests.pop()


def exec_infos(folder: Path) -> Any:
    paths = list(folder.glob("*/exec-info"))
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("case", CASES | REFUSED)
async def test_client_sends_the_same_identity_as_kubectl(
    cluster: ControlPlane, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # kubectl has no terminal either
    paths = write(tmp_path, recorder.port, (CASES | REFUSED)[case])
    environment = {"KUBECONFIG": paths, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    expected = Outcome(await with_kubectl(cluster, recorder, environment), exec_infos(tmp_path))
    actual = Outcome(await with_our_client(recorder, environment), exec_infos(tmp_path))
    assert actual == expected
    assert (actual.request is None) == (case in REFUSED)
