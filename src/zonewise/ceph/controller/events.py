"""What the controller tells people about their claims: events on PersistentVolumeClaims, from gRPC's threads.

A call says what happened and goes on; the claim is looked up and the event recorded on the event loop. Requests name
their claim only if the provisioner was told to say it (`--extra-create-metadata`); else there is a line in the log.
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
_MOST_WAITING: Final = 1000
_log = log.get_logger(__name__)

_Said = tuple[str, str, str, str]


class ClaimEvents:
    """`announce` may be called from any thread once this is made on the event loop; `run` until cancelled."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[_Said] = asyncio.Queue(_MOST_WAITING)

    def announce(self, parameters: Mapping[str, str], code: str, note: str) -> None:
        """`code` is the event's reason, `note` its sentence."""
        namespace, name = parameters.get(CLAIM_NAMESPACE, ""), parameters.get(CLAIM, "")
        _log.warning("told about a claim", claim=f"{namespace}/{name}" if name else "unknown", code=code, note=note)
        if name and namespace:
            self._loop.call_soon_threadsafe(self._put, (namespace, name, code, note))

    def _put(self, said: _Said) -> None:
        """Events are news, not records: those that nobody keeps up with are dropped, the log has them."""
        if not self._waiting.full():
            self._waiting.put_nowait(said)

    async def run(self) -> None:
        while True:
            namespace, name, code, note = await self._waiting.get()
            try:
                claim = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
            except ApiError as error:
                _log.warning("a claim was not told", claim=f"{namespace}/{name}", error=str(error))
                continue
            self._recorder.record(reference_to(PERSISTENT_VOLUME_CLAIMS, claim), Severity.WARNING, code, note)
