"""Zonewise processes for disruption tests: leaders sharing a lease, load-balanced webhooks, and a delayed watch API."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

from support.lab.machine import ZONEWISE
from support.process import Program
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import NotFound
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import LEASES, Resource
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS

LEASE_NAMESPACE, LEASE = "kube-system", "zonewise-disruption"
LEASE_SECONDS = 3
SECRET = "kube-system/zonewise-disruption"
CONFIGURATION = "zonewise-disruption"
LEADER, WEBHOOK = "zonewise-leader", "zonewise-webhook"
"""User names in the audit log."""
POLICIES = tuple(
    Resource(dict[str, Any], kind, plural, "admissionregistration.k8s.io", namespaced=False)
    for kind, plural in (
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    )
)
_MANIFESTS = Path(__file__).parents[3] / "deploy"
_CHUNK_BYTES = 2**16
_COMMON = ("--parts", "disruption", "--log-format", "json")


@contextmanager
def program(*arguments: object) -> Iterator[Program]:
    started = Program(str(ZONEWISE), *arguments)
    try:
        yield started
    finally:
        started.remove()


def start_leader(config: Path, *more: object, command: Path = ZONEWISE, environ: Mapping[str, str] = {}) -> Program:
    lease = ("--lease-namespace", LEASE_NAMESPACE, "--lease-seconds", LEASE_SECONDS)
    options = ("--kubeconfig", config, "--health-port", 0)
    return Program(str(command), "controller", *_COMMON, *options, *lease, *more, environ=environ)


def start_webhook(
    config: Path, url_port: int, port: int, *more: object, command: Path = ZONEWISE, environ: Mapping[str, str] = {}
) -> Program:
    listen = ("--url", f"https://127.0.0.1:{url_port}", "--host", "127.0.0.1", "--port", port)
    options = ("--kubeconfig", config, "--health-port", 0, "--secret", SECRET)
    return Program(str(command), "webhook", *_COMMON, *options, *listen, *more, environ=environ)


class Balancer:
    """Round-robin TCP load balancer over all webhooks; backends that refuse connections are skipped.

    While it is `silent`, connections are accepted and what comes on them is dropped.
    """

    def __init__(self) -> None:
        self.backends: dict[int, int] = {}
        """Port by webhook number."""
        self._next = itertools.count()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent = False
        self.port = 0

    def go_silent(self) -> None:
        self._silent = True

    def heal(self) -> None:
        self._silent = False
        self.reset()

    def reset(self) -> None:
        """End all connections."""
        for task in self._connections:
            task.cancel()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = list(self.backends.values())
        first = next(self._next)
        for port in (ports[(first + number) % len(ports)] for number in range(len(ports))):
            with suppress(ConnectionRefusedError):
                backend = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            return
        pumps = [asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, backend[1]), (backend[0], writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            backend[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if not self._silent:
                    writer.write(chunk)
                    await writer.drain()


class LateApi:
    """API server proxy that delays watch events by `lag_seconds`, to simulate a stale cache.

    Plain HTTP on loopback; all requests are made as the admin.
    """

    def __init__(self, plane: ControlPlane, lag_seconds: float) -> None:
        self._plane = plane
        self.lag_seconds = lag_seconds
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        pki = self._plane.layout.pki
        context = ssl.create_default_context(cafile=str(self._plane.ca_path))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(
            self._plane.server, connector=connector, timeout=timeout, auto_decompress=False
        )
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._proxy)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        assert self._runner is not None
        await self._runner.cleanup()
        await self._session.close()

    def kubeconfig(self, directory: Path) -> Path:
        document = {
            "current-context": "late",
            "clusters": [{"name": "late", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "late", "user": {}}],
            "contexts": [{"name": "late", "context": {"cluster": "late", "user": "late"}}],
        }
        path = directory / f"late-{self.port}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        body = await request.read()
        async with self._session.request(request.method, request.rel_url, headers=headers, data=body or None) as answer:
            headers_back = {
                name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers
            }
            if "watch" not in request.query:
                return web.Response(status=answer.status, headers=headers_back, body=await answer.read())
            return await self._delay_watch(request, answer, headers_back)

    async def _delay_watch(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def receive() -> None:
            async for chunk in answer.content.iter_any():
                chunks.put_nowait((time.monotonic(), chunk))
            chunks.put_nowait((time.monotonic(), b""))

        receiving = asyncio.create_task(receive())
        try:
            with suppress(ConnectionError):  # the client was killed
                while True:
                    received_at, chunk = await chunks.get()
                    await asyncio.sleep(max(0.0, received_at + self.lag_seconds - time.monotonic()))
                    if not chunk:
                        break
                    await response.write(chunk)
        finally:
            receiving.cancel()
        return response


@dataclass
class Zonewise:
    """Running Zonewise processes; any may be killed and restarted."""

    plane: ControlPlane
    balancer: Balancer
    leaders: dict[int, Program] = field(default_factory=dict)
    webhooks: dict[int, Program] = field(default_factory=dict)
    configs: dict[int, Path] = field(default_factory=dict)
    """Kubeconfigs of webhooks that use a delayed watch API, by number."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the first leader and the first webhook."""

    async def start_leader(self, number: int = 0, *more: object, command: Path = ZONEWISE) -> Program:
        config = await asyncio.to_thread(user_kubeconfig, self.plane, LEADER)
        environ = {} if number else self.environ
        self.leaders[number] = await asyncio.to_thread(start_leader, config, *more, command=command, environ=environ)
        return self.leaders[number]

    async def start_webhook(self, number: int = 0, *more: object, command: Path = ZONEWISE) -> Program:
        config = self.configs.get(number, self.plane.kubeconfig)
        if number not in self.configs:
            config = await asyncio.to_thread(user_kubeconfig, self.plane, WEBHOOK)
        port = self.balancer.backends.setdefault(number, free_port())
        arguments = (config, self.balancer.port, port, *more)
        environ = {} if number else self.environ
        self.webhooks[number] = await asyncio.to_thread(start_webhook, *arguments, command=command, environ=environ)
        return self.webhooks[number]

    async def ready(self) -> Self:
        for program in (*self.leaders.values(), *self.webhooks.values()):
            await asyncio.to_thread(program.wait_ready)
        return self

    async def kill(self, program: Program) -> None:
        program.signal(signal.SIGKILL)
        await asyncio.to_thread(program.remove)

    async def stop(self) -> None:
        for program in (*self.leaders.values(), *self.webhooks.values()):
            if program.process.poll() is None:
                await asyncio.to_thread(program.remove)


@asynccontextmanager
async def zonewise(
    client: Client,
    plane: ControlPlane,
    *,
    leaders: int = 1,
    webhooks: int = 1,
    late: dict[int, Path] | None = None,
    environ: Mapping[str, str] = {},
) -> AsyncIterator[Zonewise]:
    """Install and wait until ready; on exit everything but the CRD is removed."""
    await install(plane)
    async with Balancer() as balancer:
        running = Zonewise(plane, balancer, configs=late or {}, environ=environ)
        try:
            for number in range(leaders):
                await running.start_leader(number)
            for number in range(webhooks):
                await running.start_webhook(number)
            yield await running.ready()
        finally:
            await running.stop()
            await uninstall(client)


@dataclass(frozen=True)
class Installed:
    leader: Program
    webhook: Program


@contextmanager
def installed(plane: ControlPlane) -> Iterator[Installed]:
    """One leader and one webhook for all tests of a module."""
    asyncio.run(install(plane))
    port = free_port()
    leader = start_leader(user_kubeconfig(plane, LEADER))
    webhook = start_webhook(user_kubeconfig(plane, WEBHOOK), port, port)
    try:
        leader.wait_ready()
        webhook.wait_ready()
        yield Installed(leader, webhook)
    finally:
        for running in (leader, webhook):
            running.remove()
        asyncio.run(_uninstall_from(plane))


async def _uninstall_from(plane: ControlPlane) -> None:
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        await uninstall(client)


async def install(plane: ControlPlane, manifests: Path = _MANIFESTS) -> None:
    await kubectl(plane, "apply", "-f", str(manifests / "tdb.yaml"))
    definition = ("get", "customresourcedefinitions", "topologydisruptionbudgets.zonewise.dev", "--output=json")

    async def is_established() -> bool:
        """`kubectl wait` fails on a definition that has no conditions yet."""
        conditions = json.loads(await kubectl(plane, *definition))["status"].get("conditions") or ()
        return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)

    await eventually(is_established, "the definition is established")


async def uninstall(client: Client) -> None:
    """Remove the registrations, so that stopped webhooks do not block other tests."""
    collections: list[tuple[Resource[Any], str]] = [
        (MUTATING_WEBHOOK_CONFIGURATIONS, ""),
        (VALIDATING_WEBHOOK_CONFIGURATIONS, ""),
        *((policy, "") for policy in POLICIES),
        (LEASES, LEASE_NAMESPACE),
    ]
    for resource, namespace in collections:
        for item in (await client.list(resource.whole(), namespace)).items:
            if item["metadata"]["name"].startswith("zonewise-"):
                with suppress(NotFound):
                    await client.delete(resource, item["metadata"]["name"], namespace)


async def kubectl(plane: ControlPlane, *arguments: str) -> bytes:
    """Its output."""
    command = [str(plane.binaries / "kubectl"), "--kubeconfig", str(plane.kubeconfig), *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return stdout


def user_kubeconfig(plane: ControlPlane, name: str) -> Path:
    """Kubeconfig of a cluster-admin user with that name; RBAC is tested elsewhere."""
    path = plane.layout.kubeconfig(name)
    return path if path.exists() else plane.add_user(name, name, ("system:masters",))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
