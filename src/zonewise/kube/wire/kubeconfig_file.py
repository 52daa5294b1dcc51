"""Kubeconfig files, field by field, as kubectl reads them. Pure; `kubeconfig` interprets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from zonewise.kube.wire.access import Interaction
from zonewise.kube.wire.errors import ConfigError


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Part of a kubeconfig; unknown fields are skipped, as kubectl does."""

    def __repr__(self) -> str:
        return type(self).__name__  # may hold secrets


class Extension(Section, frozen=True):
    name: str = ""
    extension: Any = None


class ClusterSection(Section, frozen=True):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] = ()


class Variable(Section, frozen=True):
    name: str = ""
    value: str = ""


class ExecSection(Section, frozen=True, rename="camel"):
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Interaction | None = None


class UserSection(Section, frozen=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_uid: str = msgspec.field(default="", name="as-uid")
    impersonate_groups: tuple[str, ...] = msgspec.field(default=(), name="as-groups")
    impersonate_extra: dict[str, tuple[str, ...]] = msgspec.field(default={}, name="as-user-extra")
    auth_provider: dict[str, Any] | None = None
    exec: ExecSection | None = None


class ContextSection(Section, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(Section, frozen=True):
    name: str = ""
    cluster: ClusterSection = ClusterSection()


class NamedUser(Section, frozen=True):
    name: str = ""
    user: UserSection = UserSection()


class NamedContext(Section, frozen=True):
    name: str = ""
    context: ContextSection = ContextSection()


class KubeconfigFile(Section, frozen=True):
    clusters: tuple[NamedCluster, ...] = ()
    users: tuple[NamedUser, ...] = ()
    contexts: tuple[NamedContext, ...] = ()
    current_context: str = ""


def parse(text: str, path: Path) -> KubeconfigFile:
    document = _read(text, path)
    try:
        file = msgspec.convert({} if document is None else _without_nulls(document), KubeconfigFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"kubeconfig {path}: {error}; correct that field") from error
    for what, named in (("cluster", file.clusters), ("user", file.users), ("context", file.contexts)):
        _refuse_duplicates([item.name for item in named], what, path)
    return file


def _read(text: str, path: Path) -> Any:
    """Written by a program it is often JSON, which is YAML as well, and read without loading a reader of that."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    import yaml  # noqa: PLC0415 - as above

    from zonewise import yaml_reader  # noqa: PLC0415 - as above

    try:
        documents = yaml_reader.load_all(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"kubeconfig {path} is not YAML: {' '.join(str(error).split())}") from error
    if len(documents) > 1:
        raise ConfigError(f"kubeconfig {path} has {len(documents)} YAML documents; write one")
    return documents[0] if documents else None


def _without_nulls(value: Any) -> Any:
    """A null is the same as a field that is not there."""
    match value:
        case dict():
            return {name: _without_nulls(item) for name, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value if item is not None]
        case _:
            return value


def _refuse_duplicates(names: list[str], what: str, path: Path) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"kubeconfig {path}: there are two {what}s named {twice!r}; rename or remove one")
