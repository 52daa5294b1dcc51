"""Writer of a slices plan: creates and updates first, then deletes, concurrently where the order allows.

Watchers never see fewer endpoints than before and after: new and changed slices add endpoints before deleted ones take
them away. Every write is attempted; the first failure is raised at the end, and the next sync repairs the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import ENDPOINT_SLICES, Endpoint, EndpointSlice, Key
from zonewise.routing.endpoints import is_marked_ready
from zonewise.slices.decide.body import SliceBody, SliceUpdate, body_of, patch_of
from zonewise.slices.decide.plan import SlicesPlan
from zonewise.slices.decide.tracker import EndpointSliceTracker
from zonewise.slices.metrics import CHANGES_BY_OPERATION, WriteOperation

Write = Callable[[], Awaitable[None]]


class SliceWriter:
    """Records every write in the tracker."""

    def __init__(self, client: Client, tracker: EndpointSliceTracker) -> None:
        self._client = client
        self._tracker = tracker

    async def perform(self, service: Key, plan: SlicesPlan) -> bool:
        """Whether another writer changed the Service's slices meanwhile. Raises API errors, also `NotFound` and conflicts."""
        self._tracker.begin(service)
        try:
            await self._write_all(service, plan)
        finally:
            changed_by_others = self._tracker.end(service)
        return changed_by_others

    async def _write_all(self, service: Key, plan: SlicesPlan) -> None:
        """Slices without a ready endpoint are written after those with one."""
        creates: list[Write] = [partial(self._create, service, body) for body in plan.creates]
        with_ready, without_ready = self._updates(service, plan)
        if _moves_endpoints(plan):
            await _concurrently(creates)
            for update in with_ready + without_ready:
                await update()
        else:
            await _concurrently(creates + with_ready)
            await _concurrently(without_ready)
        await _concurrently([partial(self._delete, service, endpoint_slice) for endpoint_slice in plan.deletes])

    def _updates(self, service: Key, plan: SlicesPlan) -> tuple[list[Write], list[Write]]:
        with_ready: list[Write] = []
        without_ready: list[Write] = []
        for update in plan.updates:
            has_ready = any(map(is_marked_ready, update.body.endpoints))
            (with_ready if has_ready else without_ready).append(partial(self._update, service, update))
        return with_ready, without_ready

    async def _create(self, service: Key, body: SliceBody) -> None:
        try:
            created = await self._client.create(ENDPOINT_SLICES, body_of(body), service.namespace)
        except Forbidden as error:
            if any(cause.reason == "NamespaceTerminating" for cause in error.causes):
                return  # the namespace is being deleted, with all slices in it
            raise
        self._tracker.wrote(service, created)
        CHANGES_BY_OPERATION[WriteOperation.CREATE].inc()

    async def _update(self, service: Key, update: SliceUpdate) -> None:
        patch = MergePatch(patch_of(update.existing, update.body))
        name = update.existing.metadata.name
        updated = await self._client.patch(ENDPOINT_SLICES, name, patch, service.namespace)
        self._tracker.wrote(service, updated)
        CHANGES_BY_OPERATION[WriteOperation.UPDATE].inc()

    async def _delete(self, service: Key, endpoint_slice: EndpointSlice) -> None:
        try:
            await self._client.delete(
                ENDPOINT_SLICES, endpoint_slice.metadata.name, service.namespace, uid=endpoint_slice.metadata.uid
            )
        except NotFound:
            return
        self._tracker.deleted(service, endpoint_slice)
        CHANGES_BY_OPERATION[WriteOperation.DELETE].inc()


async def _concurrently(writes: Sequence[Write]) -> None:
    if len(writes) == 1:
        await writes[0]()
        return
    outcomes = await asyncio.gather(*(write() for write in writes), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _moves_endpoints(plan: SlicesPlan) -> bool:
    """Whether an update removes an endpoint that another slice receives; then the order of the plan matters."""
    if not plan.updates:
        return False
    removed = [
        _addresses(update.existing.endpoints or ()) - _addresses(update.body.endpoints) for update in plan.updates
    ]
    if not any(removed):
        return False
    bodies = (*plan.creates, *(update.body for update in plan.updates))
    received = {address for body in bodies for address in _addresses(body.endpoints)}
    return any(received & addresses for addresses in removed)


def _addresses(endpoints: Iterable[Endpoint]) -> set[str]:
    return {endpoint.addresses[0] for endpoint in endpoints if endpoint.addresses}
