"""Client of the scale subresource, for owners that are of none of the built-in kinds.

`replicas` names every such owner of a pod. Each kind is discovered once and then watched, by metadata only. A change of an
owner makes its scale be read again. Nothing is polled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from zonewise import log
from zonewise.api.names import AGGREGATE_LABEL
from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import Key, Metadata, OwnerReference, Resource, View
from zonewise.objects.change import Change

_log = log.get_logger(__name__)

_BACKOFF: Final = Backoff(first_seconds=1.0, longest_seconds=300.0)
_AGGREGATED: Final = f"{AGGREGATE_LABEL}: 'true'"


class _Owner(View, frozen=True):
    metadata: Metadata = Metadata()


class _ScaleSpec(View, frozen=True):
    replicas: int = 0


class _Scale(View, frozen=True):
    spec: _ScaleSpec = _ScaleSpec()


class _ListedKind(View, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = True


class _KindList(View, frozen=True):
    resources: tuple[_ListedKind, ...] = ()


@dataclass(frozen=True, slots=True)
class _Kind:
    api_version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.api_version}"


@dataclass(frozen=True, slots=True)
class ScaledOwner:
    """An owner as in the owner references of its pods."""

    kind: _Kind
    key: Key
    uid: str

    @classmethod
    def of(cls, reference: OwnerReference, namespace: str) -> ScaledOwner:
        return cls(_Kind(reference.api_version, reference.kind), Key(namespace, reference.name), reference.uid)

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class ScaleClient:
    """`changed` is called with the uid of an owner whose replicas became known or changed."""

    def __init__(self, client: Client, caches: Caches, changed: Callable[[str], None]) -> None:
        self._client = client
        self._caches = caches
        self._changed = changed
        self._followed: dict[_Kind, dict[Key, ScaledOwner]] = {}
        self._resources: dict[_Kind, Resource[_Owner] | None] = {}
        self._desired: dict[str, int] = {}
        self._forbidden: set[_Kind] = set()
        self._queue: WorkQueue[ScaledOwner] = WorkQueue("scales", backoff=_BACKOFF)
        self._controller = Controller("scales", self._queue, self._read, workers=2)

    async def run(self) -> None:
        await self._controller.run()

    def desired(self, uid: str) -> int | None:
        return self._desired.get(uid)

    def follow(self, reference: OwnerReference, namespace: str) -> ScaledOwner:
        """Until `forget`, or until another owner of that name is followed."""
        owner = ScaledOwner.of(reference, namespace)
        followed = self._followed.setdefault(owner.kind, {})
        former = followed.get(owner.key)
        if former != owner:
            followed[owner.key] = owner
            self._queue.add(owner)
            if former is not None:
                self._note(former, None)
        return owner

    def forget(self, owner: ScaledOwner) -> None:
        if self._follows(owner):
            del self._followed[owner.kind][owner.key]
        self._desired.pop(owner.uid, None)

    def _follows(self, owner: ScaledOwner) -> bool:
        return self._followed.get(owner.kind, {}).get(owner.key) == owner

    async def _read(self, owner: ScaledOwner) -> None:
        if not self._follows(owner):
            return
        try:
            replicas = await self._replicas(owner)
            if self._follows(owner):
                self._note(owner, replicas)
        except Forbidden as error:
            self._log_forbidden(owner.kind, error)
            raise

    async def _replicas(self, owner: ScaledOwner) -> int | None:
        resource = await self._resource(owner.kind)
        if resource is None:
            return None
        path = resource.path(owner.key.namespace, owner.key.name, "scale")
        try:
            body = await self._client.request("GET", path)
        except NotFound:
            return None
        return msgspec.json.decode(body, type=_Scale).spec.replicas

    def _note(self, owner: ScaledOwner, replicas: int | None) -> None:
        if replicas == self._desired.get(owner.uid):
            return
        if replicas is None:
            del self._desired[owner.uid]
        else:
            self._desired[owner.uid] = replicas
        self._changed(owner.uid)

    async def _resource(self, kind: _Kind) -> Resource[_Owner] | None:
        """None for a kind that can't be scaled, such as a Job or a Node."""
        if kind not in self._resources:
            resource = await self._discover(kind)
            self._resources[kind] = resource
            if resource is not None:
                self._caches.of(resource).on_change(lambda change: self._owner_changed(kind, change))
        return self._resources[kind]

    async def _discover(self, kind: _Kind) -> Resource[_Owner] | None:
        group, _, version = kind.api_version.rpartition("/")
        path = f"/apis/{kind.api_version}" if group else f"/api/{version}"
        try:
            resources = msgspec.json.decode(await self._client.request("GET", path), type=_KindList).resources
        except NotFound:
            return None
        names = {entry.name for entry in resources}
        for entry in resources:
            if entry.kind == kind.kind and "/" not in entry.name and f"{entry.name}/scale" in names:
                return Resource(_Owner, kind.kind, entry.name, group, version, entry.namespaced)
        return None

    def _owner_changed(self, kind: _Kind, change: Change[_Owner]) -> None:
        followed = self._followed.get(kind, {}).get(change.key)
        if followed is not None and _generation(change.old) != _generation(change.new):
            self._queue.add(followed)

    def _log_forbidden(self, kind: _Kind, error: Forbidden) -> None:
        if kind not in self._forbidden:
            self._forbidden.add(kind)
            _log.warning(
                "scale forbidden, budgets of its pods allow nothing",
                kind=str(kind),
                error=str(error),
                remedy=f"allow get, list, watch of it and get of its scale in a ClusterRole labelled {_AGGREGATED}",
            )


def _generation(owner: _Owner | None) -> tuple[str, int] | None:
    return None if owner is None else (owner.metadata.uid, owner.metadata.generation)
