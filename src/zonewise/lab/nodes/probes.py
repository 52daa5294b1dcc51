"""Container probes over HTTP, TCP or a command. `pod_lifecycle` says when; `probe_results` counts.

The agent runs inside its node's network and asks from there, as a kubelet does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address

import aiohttp

from zonewise.lab.decide.podspec import HttpGet, Probe, RunContainer, TcpSocket
from zonewise.lab.nodes import containers
from zonewise.lab.processes import Process


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where a pod's container can be asked."""

    process: Process
    namespace: str
    address: IPv4Address
    container: RunContainer


async def ask(probe: Probe, target: ProbeTarget) -> tuple[bool, str]:
    """Whether it answered well within the probe's timeout, and if not, what happened."""
    try:
        async with asyncio.timeout(probe.timeout_seconds):
            return await _ask(probe, target)
    except TimeoutError:
        return False, f"no answer within {probe.timeout_seconds} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return False, str(error) or type(error).__name__


async def _ask(probe: Probe, target: ProbeTarget) -> tuple[bool, str]:
    if probe.http_get is not None:
        return await _http(probe.http_get, target)
    if probe.tcp_socket is not None:
        return await _tcp(probe.tcp_socket, target)
    if probe.exec_ is not None:
        return await containers.run_beside(target.process, target.namespace, probe.exec_.command, probe.timeout_seconds)
    return False, "the lab supports httpGet, tcpSocket and exec probes only"


async def _http(get: HttpGet, target: ProbeTarget) -> tuple[bool, str]:
    url = f"{get.scheme.lower()}://{get.host or target.address}:{port_number(get.port, target.container)}{get.path}"
    headers = {header.name: header.value for header in get.http_headers}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as response:
        return 200 <= response.status < 400, f"HTTP status {response.status}"


async def _tcp(check: TcpSocket, target: ProbeTarget) -> tuple[bool, str]:
    host = check.host or str(target.address)
    _, writer = await asyncio.open_connection(host, port_number(check.port, target.container))
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True, ""


def port_number(port: int | str, container: RunContainer) -> int:
    if isinstance(port, int):
        return port
    for known in container.ports:
        if known.name == port:
            return known.container_port
    raise ValueError(f"container {container.name} has no port named {port!r}")
