"""The Services and slices that both proxies get, written by hand into a lab that has no controllers of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from zonewise.kube.client import Client
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, SERVICES

NAMESPACE = "bench"
ENDPOINTS = 10
AT_ONCE = 32


def service_name(number: int) -> str:
    return f"s{number:05d}"


def pod_address(number: int, generation: int = 0) -> str:
    return f"172.{16 + generation}.{number >> 8 & 255}.{number & 255}" if number < 1 << 16 else _wide(number)


def _wide(number: int) -> str:
    return f"172.{20 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def slice_body(number: int, replaced: str = "") -> dict[str, object]:
    """With `replaced` in place of the first endpoint, if given."""
    addresses = [pod_address(number * ENDPOINTS + each) for each in range(ENDPOINTS)]
    if replaced:
        addresses[0] = replaced
    endpoints = [{"addresses": [address], "nodeName": "far", "conditions": {"ready": True}} for address in addresses]
    name = service_name(number)
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    }


async def fill(client: Client, numbers: Iterable[int]) -> None:
    """Those Services and their slices; the namespace too, with the first."""
    if 0 in numbers:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})

    async def create(number: int) -> None:
        spec = {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
        await client.create(SERVICES, {"metadata": {"name": service_name(number)}, "spec": spec}, NAMESPACE)
        await client.create(ENDPOINT_SLICES, slice_body(number), NAMESPACE)

    await _side_by_side(create, numbers)


async def _side_by_side(act: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await act(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
