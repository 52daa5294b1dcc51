"""Performs a plan: creates and updates first, then deletes, as many at once as may be.

Whoever watches sees at no moment less than before or after: what a new or changed slice gives is there before what a
deleted one takes. All is tried; the first failure is raised when everything is done, and the next look at the Service
makes up for it.
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
    """Tells `written` of all that it wrote."""

    def __init__(self, client: Client, written: EndpointSliceTracker) -> None:
        self._client = client
        self._written = written

    async def perform(self, service: Key, plan: SlicesPlan) -> bool:
        """Whether somebody else wrote the Service's slices meanwhile. `NotFound` and conflicts are raised, too."""
        self._written.begin(service)
        try:
            await self._write_all(service, plan)
        finally:
            overtaken = self._written.end(service)
        return overtaken

    async def _write_all(self, service: Key, plan: SlicesPlan) -> None:
        """Slices that end without a ready endpoint come after those that end with one."""
        creates: list[Write] = [partial(self._create, service, draft) for draft in plan.creates]
        giving, taking = self._updates(service, plan)
        if _moves_endpoints(plan):
            await _at_once(creates)
            for update in giving + taking:
                await update()
        else:
            await _at_once(creates + giving)
            await _at_once(taking)
        await _at_once([partial(self._delete, service, gone) for gone in plan.deletes])

    def _updates(self, service: Key, plan: SlicesPlan) -> tuple[list[Write], list[Write]]:
        giving: list[Write] = []
        taking: list[Write] = []
        for update in plan.updates:
            has_ready = any(map(is_marked_ready, update.draft.endpoints))
            (giving if has_ready else taking).append(partial(self._update, service, update))
        return giving, taking

    async def _create(self, service: Key, draft: SliceBody) -> None:
        try:
            made = await self._client.create(ENDPOINT_SLICES, body_of(draft), service.namespace)
        except Forbidden as error:
            if any(cause.reason == "NamespaceTerminating" for cause in error.causes):
                return  # nothing can be made there any more, and all that is there goes
            raise
        self._written.wrote(service, made)
        CHANGES_BY_OPERATION[WriteOperation.CREATE].inc()

    async def _update(self, service: Key, update: SliceUpdate) -> None:
        patch = MergePatch(patch_of(update.existing, update.draft))
        name = update.existing.metadata.name
        made = await self._client.patch(ENDPOINT_SLICES, name, patch, service.namespace)
        self._written.wrote(service, made)
        CHANGES_BY_OPERATION[WriteOperation.UPDATE].inc()

    async def _delete(self, service: Key, gone: EndpointSlice) -> None:
        try:
            await self._client.delete(ENDPOINT_SLICES, gone.metadata.name, service.namespace, uid=gone.metadata.uid)
        except NotFound:
            return
        self._written.deleted(service, gone)
        CHANGES_BY_OPERATION[WriteOperation.DELETE].inc()


async def _at_once(writes: Sequence[Write]) -> None:
    if len(writes) == 1:
        await writes[0]()
        return
    outcomes = await asyncio.gather(*(write() for write in writes), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _moves_endpoints(plan: SlicesPlan) -> bool:
    """Whether an update takes from its slice what another slice is to have; then the plan's order counts."""
    if not plan.updates:
        return False
    taken = [
        _addresses(update.existing.endpoints or ()) - _addresses(update.draft.endpoints) for update in plan.updates
    ]
    if not any(taken):
        return False
    drafts = (*plan.creates, *(update.draft for update in plan.updates))
    given = {address for draft in drafts for address in _addresses(draft.endpoints)}
    return any(given & addresses for addresses in taken)


def _addresses(endpoints: Iterable[Endpoint]) -> set[str]:
    return {endpoint.addresses[0] for endpoint in endpoints if endpoint.addresses}
