"""Adds an accept loop to aiohttp's runner, which closes it before it ends connections."""

from __future__ import annotations

from aiohttp import web

from zonewise.kube.server.accept_loop import AcceptLoop


class AcceptSite(web.BaseSite):
    def __init__(self, runner: web.BaseRunner, accept_loop: AcceptLoop) -> None:
        super().__init__(runner)
        self._accept_loop = accept_loop

    @property
    def name(self) -> str:
        return f"port {self._accept_loop.port}"

    async def start(self) -> None:
        await super().start()

    async def stop(self) -> None:
        self._accept_loop.close()
        await super().stop()
