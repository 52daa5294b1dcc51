"""Where the service ranges come from: the API server, or the flag where it has none to read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects.networking import SERVICE_CIDRS
from zonewise.proxy.service_cidrs import ServiceCidrs

FLAG = ("10.96.0.0/12", "fd96::/112")


class FakeClient:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def list(self, resource: Any) -> Any:
        assert resource is SERVICE_CIDRS
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(items=[SimpleNamespace(spec=SimpleNamespace(cidrs=self.answer))])


@pytest.mark.parametrize("flag", [(), FLAG], ids=["no flag", "flag"])
@pytest.mark.parametrize("error", [NotFound("no such API"), Forbidden("no right")], ids=["not served", "forbidden"])
async def test_ranges_are_those_of_the_flag_where_none_can_be_read(error: Exception, flag: tuple[str, ...]) -> None:
    client: Any = FakeClient(error)
    made = ServiceCidrs(client, lambda: None, flag)
    await made.run()
    assert made.known.is_set()
    assert made.cidrs == flag


async def test_ranges_of_the_api_server_replace_those_of_the_flag() -> None:
    client: Any = FakeClient(["10.0.0.0/24"])
    changes: list[None] = []
    made = ServiceCidrs(client, lambda: changes.append(None), FLAG)
    running = asyncio.create_task(made.run())
    await made.known.wait()
    assert made.cidrs == ("10.0.0.0/24",)
    assert changes == [None]
    running.cancel()
    await asyncio.wait([running])
