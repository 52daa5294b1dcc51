"""Watch over staged volumes: one whose daemon has ended or hangs is logged, counted, and reported on the Node.

kubelet asks for the health of volumes only where an alpha feature is on; pods see just I/O errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import Gauge

from zonewise import log

BROKEN: Final = Gauge("zonewise_csi_broken_volumes", "Mounted volumes whose daemon has ended or does not answer")
EVENT: Final = "VolumeBroken"
_SECONDS: Final = 15.0
_log = log.get_logger(__name__)

Report = Callable[[str], None]
"""Called with a sentence, once for each problem."""


class VolumeWatch:
    """`problems` returns what is wrong by volume; it may block."""

    def __init__(self, problems: Callable[[], Mapping[str, str]], report: Report) -> None:
        self._problems = problems
        self._report = report
        self._known: Mapping[str, str] = {}

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(_SECONDS)

    async def check(self) -> None:
        try:
            problems = await asyncio.to_thread(self._problems)
        except Exception:  # noqa: BLE001 - volumes must be served whatever this finds
            _log.exception("volumes not checked")
            return
        BROKEN.set(len(problems))
        for volume, problem in problems.items():
            if self._known.get(volume) != problem:
                _log.warning("volume broken", volume=volume, problem=problem)
                self._report(f"volume {volume}: {problem}")
        for volume in self._known.keys() - problems.keys():
            _log.info("volume repaired", volume=volume)
        self._known = problems
