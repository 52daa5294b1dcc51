"""Credentials for the API server: fixed, from a rotated file, or from an exec plugin.

`transport` asks for the current identity before each request, and reports when the server rejected one (401).
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Protocol

import msgspec

from zonewise.kube.client.tls import make_context
from zonewise.kube.client.watched_file import WatchedFile, content_of, source_of
from zonewise.kube.wire.access import BasicAuth, Credential, ExecPlugin, Interaction, StaticToken, TokenFile
from zonewise.kube.wire.errors import ConfigError, Unauthorized


@dataclass(frozen=True, slots=True)
class Identity:
    """What one request proves itself with; the certificate comes with its key."""

    authorization: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)


class Credentials(Protocol):
    async def current(self) -> Identity: ...

    def refuse(self, identity: Identity) -> bool:
        """The server answered 401. Returns whether asking again may give another identity."""
        ...


def credentials_of(credential: Credential | None) -> Credentials:
    match credential:
        case None:
            return FixedCredentials(Identity())
        case StaticToken(token):
            return FixedCredentials(Identity(f"Bearer {token}"))
        case BasicAuth(username, password):
            encoded = base64.b64encode(f"{username}:{password}".encode()).decode()
            return FixedCredentials(Identity(f"Basic {encoded}"))
        case TokenFile():
            return FileCredentials(credential)
        case ExecPlugin():
            return PluginCredentials(credential)


class FixedCredentials:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def current(self) -> Identity:
        return self._identity

    def refuse(self, identity: Identity) -> bool:
        return identity != self._identity


class FileCredentials:
    """The last good token serves while the file is away, or half written."""

    def __init__(self, credential: TokenFile) -> None:
        self._file = WatchedFile(credential.path)
        self._last_good = credential.fallback

    async def current(self) -> Identity:
        return self._identity()

    def refuse(self, identity: Identity) -> bool:
        self._file.forget()
        return identity != self._identity()

    def _identity(self) -> Identity:
        try:
            self._last_good = self._read()
        except ConfigError:
            if not self._last_good:
                raise
        return Identity(f"Bearer {self._last_good}")

    def _read(self) -> str:
        token = self._file.content().decode(errors="replace").strip()
        if token.split() != [token]:
            raise ConfigError(f"token file {self._file.path} does not hold one token")
        return token


class _PluginStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _PluginOutput(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _PluginStatus | None = None


class PluginCredentials:
    """Runs the command when there is no valid credential; concurrent callers wait for the same run."""

    def __init__(self, plugin: ExecPlugin) -> None:
        self._plugin = plugin
        self._lock = asyncio.Lock()
        self._identity: Identity | None = None
        self._expires: datetime | None = None

    async def current(self) -> Identity:
        async with self._lock:
            if self._identity is None or (self._expires and self._expires <= datetime.now(UTC)):
                self._identity, self._expires = await self._ask()
            return self._identity

    def refuse(self, identity: Identity) -> bool:
        if identity == self._identity:
            self._identity = None
        return True

    async def _ask(self) -> tuple[Identity, datetime | None]:
        """What is wrong with a plugin now may pass: unlike a wrong kubeconfig it fails one call, not the process."""
        try:
            status = read_plugin_output(await run_plugin(self._plugin), self._plugin)
            return identity_of(status, self._plugin), status.expiration_timestamp
        except ConfigError as error:
            raise Unauthorized(str(error)) from error


async def run_plugin(plugin: ExecPlugin) -> bytes:
    interactive = _may_interact(plugin)
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if interactive else asyncio.subprocess.PIPE,
            env={**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": exec_info(plugin, interactive)},
        )
    except OSError as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
        raise ConfigError(f"exec plugin {plugin.command!r} cannot be started: {error.strerror}{hint}") from error
    try:
        output, complaint = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        message = " ".join((complaint or b"").decode(errors="replace").split())
        raise Unauthorized(f"exec plugin {plugin.command!r} failed with exit code {process.returncode}: {message}")
    return output


def _may_interact(plugin: ExecPlugin) -> bool:
    terminal = sys.stdin is not None and sys.stdin.isatty()
    match plugin.interaction:
        case Interaction.NEVER:
            return False
        case Interaction.IF_AVAILABLE:
            return terminal
        case Interaction.ALWAYS:
            if not terminal:
                raise ConfigError(f"exec plugin {plugin.command!r} needs a terminal (interactiveMode: Always)")
            return True


def exec_info(plugin: ExecPlugin, interactive: bool) -> str:
    """The plugin's input, in KUBERNETES_EXEC_INFO."""
    spec: dict[str, object] = {"interactive": interactive}
    if plugin.cluster is not None:
        authority = content_of(source_of(plugin.authority))
        trusted = {"certificate-authority-data": base64.b64encode(authority).decode()} if authority else {}
        spec["cluster"] = {**plugin.cluster, **trusted}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(info).decode()


def read_plugin_output(output: bytes, plugin: ExecPlugin) -> _PluginStatus:
    try:
        read = msgspec.json.decode(output, type=_PluginOutput)
    except ValueError as error:  # of msgspec, or of text that is not UTF-8
        raise ConfigError(f"exec plugin {plugin.command!r} printed no ExecCredential: {error}") from error
    if read.kind != "ExecCredential" or read.api_version != plugin.api_version:
        raise ConfigError(
            f"exec plugin {plugin.command!r} printed {read.kind or 'no kind'} {read.api_version}; "
            f"expected ExecCredential {plugin.api_version}"
        )
    status = read.status or _PluginStatus()
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise ConfigError(f"exec plugin {plugin.command!r} gave half of a client certificate and key")
    if not status.token and not status.client_key_data:
        raise ConfigError(f"exec plugin {plugin.command!r} gave neither a token nor a client certificate")
    if status.token and (" " in status.token or not status.token.isprintable()):
        raise ConfigError(f"exec plugin {plugin.command!r} gave a token with spaces or line breaks")
    return status


def identity_of(status: _PluginStatus, plugin: ExecPlugin) -> Identity:
    pair = (status.client_certificate_data, status.client_key_data)
    certificate = "\n".join(pair).encode() if all(pair) else b""
    make_context(b"", certificate, verify=False, origin=f"exec plugin {plugin.command!r}")  # fails if it is unusable
    return Identity(authorization=f"Bearer {status.token}" if status.token else "", certificate=certificate)
