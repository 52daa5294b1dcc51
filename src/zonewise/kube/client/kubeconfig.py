"""Kubeconfig files and in-cluster configuration, read into a `ClusterAccess`.

The rules are kubectl's (client-go's `clientcmd`): files of KUBECONFIG are merged, the first to name a cluster, user or
context wins whole, missing files are skipped, relative paths start at the file that holds them. `merge` and
`interpret` are pure; `load`, `in_cluster` and `default` read files and the environment.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

from yarl import URL

from zonewise.kube.wire.access import (
    BasicAuth,
    ClientCertificate,
    ClusterAccess,
    Credential,
    ExecPlugin,
    Interaction,
    Material,
    StaticToken,
    TokenFile,
)
from zonewise.kube.wire.errors import ConfigError
from zonewise.kube.wire.http_proxy import environment_proxy, proxy_of, without_userinfo
from zonewise.kube.wire.kubeconfig_file import (
    ClusterSection,
    ContextSection,
    ExecSection,
    KubeconfigFile,
    UserSection,
    parse,
)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_HEADER_NAME_MARKS = "!#$&'*+-.^_`|~"
_EXEC_CLUSTER_EXTENSION = "client.authentication.k8s.io/exec"


E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class PlacedFile(Generic[E]):
    """An entry of a file and the directory its relative paths start from."""

    entry: E
    folder: Path


_ANONYMOUS = PlacedFile(UserSection(), Path())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """One or more files merged."""

    clusters: Mapping[str, PlacedFile[ClusterSection]]
    users: Mapping[str, PlacedFile[UserSection]]
    contexts: Mapping[str, PlacedFile[ContextSection]]
    current_context: str
    origin: str


def merge(files: Sequence[tuple[Path, KubeconfigFile]]) -> Kubeconfig:
    clusters: dict[str, PlacedFile[ClusterSection]] = {}
    users: dict[str, PlacedFile[UserSection]] = {}
    contexts: dict[str, PlacedFile[ContextSection]] = {}
    for path, file in files:
        _add(clusters, {item.name: item.cluster for item in file.clusters}, path)
        _add(users, {item.name: item.user for item in file.users}, path)
        _add(contexts, {item.name: item.context for item in file.contexts}, path)
    return Kubeconfig(
        clusters=clusters,
        users=users,
        contexts=contexts,
        current_context=next((file.current_context for _, file in files if file.current_context), ""),
        origin=os.pathsep.join(str(path) for path, _ in files),
    )


def _add(merged: dict[str, PlacedFile[E]], entries: Mapping[str, E], path: Path) -> None:
    for name, entry in entries.items():
        merged.setdefault(name, PlacedFile(entry, path.parent))


def interpret(config: Kubeconfig, context: str | None, environment: Mapping[str, str]) -> ClusterAccess:
    """What a context means; without one, the file's own current-context."""
    name = context or config.current_context
    if not name:
        raise ConfigError(
            f"kubeconfig {config.origin}: no current-context is set; name one with --context{_choice(config.contexts)}"
        )
    chosen = _named(config.contexts, name, "context", config.origin).entry
    cluster = _named(config.clusters, chosen.cluster, f"cluster of context {name!r}", config.origin)
    user = _named(config.users, chosen.user, f"user of context {name!r}", config.origin) if chosen.user else _ANONYMOUS
    origin = f"context {name!r} of {config.origin}"
    server = _server(cluster.entry.server, origin)
    # As kubectl does, nothing secret is sent over plain HTTP.
    is_secure = server.startswith("https://")
    return ClusterAccess(
        server=server,
        namespace=chosen.namespace or "default",
        authority=_material(cluster, "certificate_authority", origin),
        verify=_verifies(cluster.entry, origin),
        tls_server_name=cluster.entry.tls_server_name,
        proxy_url=_proxy(cluster.entry.proxy_url or environment_proxy(server, environment), origin),
        compression=not cluster.entry.disable_compression,
        impersonation=_impersonation(user.entry, origin),
        certificate=_certificate(user, origin) if is_secure else None,
        credential=_credential(user, cluster, origin) if is_secure else None,
        origin=origin,
    )


def _named(entries: Mapping[str, PlacedFile[E]], name: str, what: str, origin: str) -> PlacedFile[E]:
    if name not in entries:
        raise ConfigError(f"kubeconfig {origin}: there is no {what} named {name!r}{_choice(entries)}")
    return entries[name]


def _choice(entries: Mapping[str, PlacedFile[Any]]) -> str:
    names = [name if name.isprintable() else repr(name) for name in sorted(entries)]
    return f"; it has {', '.join(names)}" if names else "; it has none"


def _server(server: str, origin: str) -> str:
    with suppress(ValueError):  # a port that is no number, or half an IPv6 address
        parts = urlsplit(server)
        if parts.scheme in {"https", "http"} and parts.hostname and parts.port != 0:
            return parts._replace(query="", fragment="").geturl().rstrip("/")
    raise ConfigError(f"{origin}: server {without_userinfo(server)!r} is not a URL; expected https://HOST[:PORT]")


def _proxy(url: str, origin: str) -> str:
    try:
        proxy, _ = proxy_of(url)
    except ValueError:  # its text holds the URL, and so maybe a password
        proxy = URL()
    if proxy is not None and (proxy.scheme not in {"http", "https"} or not proxy.host):
        shown = without_userinfo(url)
        raise ConfigError(f"{origin}: proxy-url {shown!r} is not supported; use http://HOST:PORT or https://HOST:PORT")
    return url


def _verifies(cluster: ClusterSection, origin: str) -> bool:
    if not cluster.insecure_skip_tls_verify:
        return True
    if cluster.certificate_authority or cluster.certificate_authority_data:
        raise ConfigError(f"{origin}: both insecure-skip-tls-verify and a certificate-authority are given; remove one")
    return False


def _material(placed: PlacedFile[ClusterSection] | PlacedFile[UserSection], field: str, origin: str) -> Material | None:
    """Inline data wins over the file."""
    data: str = getattr(placed.entry, f"{field}_data")
    path: str = getattr(placed.entry, field)
    if data:
        return _decoded(data, f"{field.replace('_', '-')}-data", origin)
    return placed.folder / path if path else None


def _decoded(data: str, field: str, origin: str) -> bytes:
    try:
        return binascii.a2b_base64("".join(data.split()), strict_mode=True)
    except ValueError as error:
        raise ConfigError(f"{origin}: {field} is not base64: {error}") from error


def _certificate(user: PlacedFile[UserSection], origin: str) -> ClientCertificate | None:
    certificate = _material(user, "client_certificate", origin)
    if certificate is None:
        return None
    key = _material(user, "client_key", origin)
    if key is None:
        raise ConfigError(
            f"{origin}: a client-certificate is given without its client-key; add client-key or client-key-data"
        )
    return ClientCertificate(certificate, key)


def _credential(placed: PlacedFile[UserSection], cluster: PlacedFile[ClusterSection], origin: str) -> Credential | None:
    user = placed.entry
    if user.auth_provider is not None:
        provider = user.auth_provider.get("name", "")
        raise ConfigError(f"{origin}: auth-provider {provider!r} is not supported; use the provider's exec plugin")
    if user.token and user.username:
        raise ConfigError(f"{origin}: both a token and a username are given; remove one")
    if user.token_file:
        return TokenFile(placed.folder / user.token_file, fallback=user.token)
    if user.token:
        return StaticToken(user.token)
    if user.username or user.password:
        return BasicAuth(user.username, user.password)
    if user.exec is not None:
        return _exec(user.exec, placed.folder, cluster, origin)
    return None


def _exec(plugin: ExecSection, folder: Path, cluster: PlacedFile[ClusterSection], origin: str) -> ExecPlugin:
    if not plugin.command:
        raise ConfigError(f"{origin}: the exec plugin has no command")
    if plugin.api_version not in EXEC_API_VERSIONS:
        raise ConfigError(
            f"{origin}: exec plugin {plugin.command!r} has apiVersion {plugin.api_version!r}; "
            f"expected {' or '.join(EXEC_API_VERSIONS)}"
        )
    if plugin.interactive_mode is None and plugin.api_version == EXEC_API_VERSIONS[0]:
        raise ConfigError(
            f"{origin}: exec plugin {plugin.command!r} needs an interactiveMode: Never, IfAvailable or Always"
        )
    return ExecPlugin(
        # Only a command with a slash is a path; others are searched in PATH.
        command=str(folder / plugin.command) if os.sep in plugin.command else plugin.command,
        arguments=plugin.args,
        environment=tuple((variable.name, variable.value) for variable in plugin.env),
        api_version=plugin.api_version,
        interaction=plugin.interactive_mode or Interaction.IF_AVAILABLE,
        install_hint=plugin.install_hint,
        cluster=_cluster_for_plugin(cluster.entry) if plugin.provide_cluster_info else None,
        authority=_material(cluster, "certificate_authority", origin) if plugin.provide_cluster_info else None,
    )


def _cluster_for_plugin(cluster: ClusterSection) -> dict[str, object]:
    extension = next((item.extension for item in cluster.extensions if item.name == _EXEC_CLUSTER_EXTENSION), None)
    known: dict[str, object] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": extension,
    }
    return {name: value for name, value in known.items() if value}


def _impersonation(user: UserSection, origin: str) -> tuple[tuple[str, str], ...]:
    if not user.impersonate:
        if user.impersonate_uid or user.impersonate_groups or user.impersonate_extra:
            raise ConfigError(
                f"{origin}: as-uid, as-groups or as-user-extra is given without as; add the user to act as"
            )
        return ()
    headers = [("Impersonate-User", user.impersonate)]
    if user.impersonate_uid:
        headers.append(("Impersonate-Uid", user.impersonate_uid))
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups]
    for name, values in user.impersonate_extra.items():
        headers += [(f"Impersonate-Extra-{quote(name, safe=_HEADER_NAME_MARKS)}", value) for value in values]
    return tuple(headers)


def load(
    path: Path | str | None = None, context: str | None = None, environment: Mapping[str, str] | None = None
) -> ClusterAccess:
    """From `path`, else the files of KUBECONFIG, else ~/.kube/config."""
    environment = os.environ if environment is None else environment
    return interpret(merge(_read(path, environment)), context, environment)


def _read(path: Path | str | None, environment: Mapping[str, str]) -> list[tuple[Path, KubeconfigFile]]:
    paths = [Path(path)] if path else _paths(environment)
    files = [(item.absolute(), parse(_text(item), item)) for item in paths if path or item.exists()]
    if not files:
        tried = ", ".join(map(str, paths))
        raise ConfigError(f"no kubeconfig: {tried} does not exist; give one with --kubeconfig or KUBECONFIG")
    return files


def _paths(environment: Mapping[str, str]) -> list[Path]:
    listed = environment.get("KUBECONFIG", "")
    if listed:
        # A path named twice counts once, as in kubectl.
        return [Path(item) for item in dict.fromkeys(listed.split(os.pathsep)) if item]
    return [Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {_one_line(error)}") from error


def in_cluster(root: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] | None = None) -> ClusterAccess:
    """What every pod with a service account finds in itself; the token file is replaced before it expires."""
    environment = os.environ if environment is None else environment
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    for file in (root / "token", root / "ca.crt"):
        if not file.exists():
            raise ConfigError(f"in a cluster, but {file} is missing; is automountServiceAccountToken off?")
    namespace = root / "namespace"
    origin = f"service account {root}"
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClusterAccess(
        server=server,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        authority=root / "ca.crt",
        proxy_url=_proxy(environment_proxy(server, environment), origin),
        credential=TokenFile(root / "token"),
        origin=origin,
    )


def find(path: Path | str | None, context: str | None) -> ClusterAccess:
    """The given kubeconfig, else the default one. Raises ConfigError if there is none."""
    return load(path, context) if path or context else default()


def default(environment: Mapping[str, str] | None = None) -> ClusterAccess:
    """A kubeconfig where there is one, else the pod's own service account."""
    environment = os.environ if environment is None else environment
    inside = "KUBERNETES_SERVICE_HOST" in environment
    if inside and not any(path.exists() for path in _paths(environment)):
        return in_cluster(environment=environment)
    return load(environment=environment)


def contexts(path: Path | str | None, environment: Mapping[str, str] | None = None) -> list[str]:
    """Names that a person may choose from."""
    return list(merge(_read(path, os.environ if environment is None else environment)).contexts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
