"""Address and credentials of one API server: plain values, made by `kubeconfig`, used by `transport`.

Secrets never appear in the `repr` of any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

Material = bytes | Path
"""PEM text given inline, or a file that may be replaced while we run."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    certificate: Material = field(repr=False)
    key: Material = field(repr=False)


@dataclass(frozen=True, slots=True)
class StaticToken:
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Read again when the file changes; `fallback` serves while it cannot be read."""

    path: Path
    fallback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class BasicAuth:
    username: str
    password: str = field(repr=False)


class Interaction(StrEnum):
    """Whether an exec plugin may prompt on the terminal."""

    NEVER = "Never"
    IF_AVAILABLE = "IfAvailable"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """A command that prints an ExecCredential (client.authentication.k8s.io)."""

    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str
    interaction: Interaction = Interaction.IF_AVAILABLE
    install_hint: str = ""
    cluster: Mapping[str, object] | None = field(default=None, repr=False)
    """Passed on to the plugin, with the CA, where the kubeconfig asks for it."""
    authority: Material | None = None


Credential = StaticToken | TokenFile | BasicAuth | ExecPlugin


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    server: str
    namespace: str = "default"
    authority: Material | None = None
    """The CA to trust; the system's own when absent."""
    verify: bool = True
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    compression: bool = True
    certificate: ClientCertificate | None = None
    credential: Credential | None = None
    impersonation: tuple[tuple[str, str], ...] = ()
    """Impersonate-* headers, in order."""
    origin: str = ""
    """Where this was read from, for messages: "context lab of /home/me/.kube/config"."""
