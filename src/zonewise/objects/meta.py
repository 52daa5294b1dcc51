"""The base of every view, and the metadata all objects share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec


class View(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename="camel"):
    """A partial, immutable reading of an object. Unknown fields are skipped while decoding."""


class OwnerReference(View, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(View, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class Key(NamedTuple):
    """What an object is called within its kind; the namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


def key_of(viewed: HasMetadata) -> Key:
    return Key(viewed.metadata.namespace, viewed.metadata.name)


def micro_time(wall: datetime) -> str:
    """As the API writes times with microseconds."""
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
