"""Events on PersistentVolumeClaims, recorded from gRPC threads.

`announce` returns at once; the claim is read and the event recorded on the event loop. Requests name their claim only
if csi-provisioner runs with `--extra-create-metadata`; otherwise there is only a log line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from zonewise import log
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder, Severity, reference_to
from zonewise.kube.wire.errors import ApiError
from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS

CLAIM: Final = "csi.storage.k8s.io/pvc/name"
CLAIM_NAMESPACE: Final = "csi.storage.k8s.io/pvc/namespace"
_MAX_QUEUED: Final = 1000
_log = log.get_logger(__name__)

_ClaimEvent = tuple[str, str, str, str]
"""Namespace and name of the claim, reason, note."""


class ClaimEvents:
    """Create it on the event loop. `announce` may be called from any thread; `run` runs until cancelled."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[_ClaimEvent] = asyncio.Queue(_MAX_QUEUED)

    def announce(self, parameters: Mapping[str, str], code: str, note: str) -> None:
        """`code` is the event's reason."""
        namespace, name = parameters.get(CLAIM_NAMESPACE, ""), parameters.get(CLAIM, "")
        _log.warning("claim event", claim=f"{namespace}/{name}" if name else "unknown", code=code, note=note)
        if name and namespace:
            self._loop.call_soon_threadsafe(self._put, (namespace, name, code, note))

    def _put(self, event: _ClaimEvent) -> None:
        """Drops events beyond the queue's limit; they are in the log."""
        if not self._queue.full():
            self._queue.put_nowait(event)

    async def run(self) -> None:
        while True:
            namespace, name, code, note = await self._queue.get()
            try:
                claim = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
            except ApiError as error:
                _log.warning("claim event not recorded", claim=f"{namespace}/{name}", error=str(error))
                continue
            self._recorder.record(reference_to(PERSISTENT_VOLUME_CLAIMS, claim), Severity.WARNING, code, note)
