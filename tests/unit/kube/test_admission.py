"""Admission server over real TLS on loopback: deadlines, bad bodies, keep-alive, renewed certificates, shutdown."""

import asyncio
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from zonewise.errors import ZonewiseError
from zonewise.kube.server.admission import AdmissionServer, Webhook
from zonewise.kube.server.cert_manager import install
from zonewise.kube.server.certificates import Authority
from zonewise.kube.server.tls import server_context
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.objects import Pod

HOST = "127.0.0.1"
FAILED = AdmissionVerdict.deny("could not decide", code=503)
DAY = dt.timedelta(days=1)
KEY = "5" * 64


class Decisions:
    """Webhook handlers that wait, fail or return as the test configures."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.arrived = asyncio.Event()
        self.error: Exception | None = None
        self.patch: list[dict[str, Any]] = []
        self.cancelled = False
        self.stopping = False

    async def at_once(self, review: Review[Pod]) -> AdmissionVerdict:
        if self.error:
            raise self.error
        return AdmissionVerdict.allow(warnings=[review.name], patch=self.patch)

    async def when_released(self, _review: Review[Pod]) -> AdmissionVerdict:
        self.arrived.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return AdmissionVerdict.deny("released")


class ServerFixture:
    def __init__(self, server: AdmissionServer, decisions: Decisions, context: ssl.SSLContext) -> None:
        self.server = server
        self.decisions = decisions
        self.context = context
        self.trusting = ssl.create_default_context(cadata=AUTHORITY.certificate_pem.decode())

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.server.port}"

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.trusting))


AUTHORITY = Authority.create(dt.datetime.now(dt.UTC), DAY)


def new_leaf() -> Any:
    return AUTHORITY.issue([HOST], dt.datetime.now(dt.UTC), DAY)


@asynccontextmanager
async def serving(deadline_seconds: float = 30.0) -> AsyncIterator[ServerFixture]:
    decisions, context = Decisions(), server_context()
    install(context, new_leaf())
    webhooks = [
        Webhook("at-once", Pod, decisions.at_once, FAILED, deadline_seconds),
        Webhook("when-released", Pod, decisions.when_released, FAILED, deadline_seconds),
    ]
    limits: dict[str, Any] = {"body_limit_bytes": 100_000, "is_stopping": lambda: decisions.stopping}
    async with AdmissionServer(webhooks, context, KEY.__eq__, host=HOST, port=0, **limits) as server:
        yield ServerFixture(server, decisions, context)


def review_request(uid: str = "u-1") -> dict[str, Any]:
    request = {"uid": uid, "operation": "CREATE", "name": "web-0", "object": {"metadata": {"name": "web-0"}}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def count(webhook: str, outcome: str) -> float:
    labels = {"webhook": webhook, "outcome": outcome}
    return REGISTRY.get_sample_value("zonewise_admission_reviews_total", labels) or 0.0


async def post_review(session: aiohttp.ClientSession, url: str, uid: str = "u-1") -> dict[str, Any]:
    async with session.post(url, json=review_request(uid)) as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        answer: dict[str, Any] = (await response.json())["response"]
        return answer


async def test_verdict_is_returned_and_counted() -> None:
    before = count("at-once", "allowed")
    async with serving() as fixture, fixture.session() as session:
        answer = await post_review(session, f"{fixture.url}/at-once/{KEY}", "u-77")
    assert answer == {"uid": "u-77", "allowed": True, "warnings": ["web-0"]}
    assert count("at-once", "allowed") == before + 1
    assert (REGISTRY.get_sample_value("zonewise_admission_seconds_count", {"webhook": "at-once"}) or 0) >= 1


async def test_late_handler_is_cancelled_with_the_declared_verdict() -> None:
    before = count("when-released", "late")
    async with serving(deadline_seconds=0.1) as fixture, fixture.session() as session:
        answer = await post_review(session, f"{fixture.url}/when-released/{KEY}")
    assert not answer["allowed"]
    assert answer["status"]["code"] == 503
    assert fixture.decisions.cancelled
    assert count("when-released", "late") == before + 1


async def test_shorter_timeout_of_the_api_server_applies() -> None:
    async with serving(deadline_seconds=300.0) as fixture, fixture.session() as session:
        answer = await post_review(session, f"{fixture.url}/when-released/{KEY}?timeout=1s")
    assert answer["status"]["message"] == "could not decide"


async def test_malformed_timeout_is_ignored() -> None:
    async with serving() as fixture, fixture.session() as session:
        assert (await post_review(session, f"{fixture.url}/at-once/{KEY}?timeout=soon"))["allowed"]


async def test_unencodable_verdict_is_a_failure() -> None:
    before = count("at-once", "failed"), count("at-once", "allowed")
    async with serving() as fixture, fixture.session() as session:
        fixture.decisions.patch = [{"op": "add", "path": "/x", "value": object()}]
        answer = await post_review(session, f"{fixture.url}/at-once/{KEY}")
    assert answer["status"]["message"] == "could not decide"
    assert (count("at-once", "failed"), count("at-once", "allowed")) == (before[0] + 1, before[1])


@pytest.mark.parametrize("error", [RuntimeError("boom"), TimeoutError("a call of the handler's own")])
async def test_failing_handler_returns_the_declared_verdict(error: Exception) -> None:
    before = count("at-once", "failed")
    async with serving() as fixture, fixture.session() as session:
        fixture.decisions.error = error
        answer = await post_review(session, f"{fixture.url}/at-once/{KEY}")
    assert answer["status"]["message"] == "could not decide"
    assert count("at-once", "failed") == before + 1


BAD = {
    "not JSON": (b"{", 400, "not a readable AdmissionReview"),
    "not a review": (b"{}", 400, "expected AdmissionReview of admission.k8s.io/v1"),
    "too large": (b" " * 100_001, 413, "100000"),
}


@pytest.mark.parametrize(("body", "status", "problem"), BAD.values(), ids=BAD)
async def test_bad_body_is_refused_with_a_reason(body: bytes, status: int, problem: str) -> None:
    before = count("at-once", "unreadable")
    async with serving() as fixture, fixture.session() as session:
        async with session.post(f"{fixture.url}/at-once/{KEY}", data=body) as response:
            assert response.status == status
            assert problem in await response.text()
        assert count("at-once", "unreadable") == before + 1
        assert (await post_review(session, f"{fixture.url}/at-once/{KEY}"))["allowed"]


async def test_missing_body_ends_at_the_deadline() -> None:
    async with serving(deadline_seconds=0.1) as fixture:
        reader, writer = await asyncio.open_connection(HOST, fixture.server.port, ssl=fixture.trusting)
        writer.write(b"POST /at-once/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{" % KEY.encode())
        await writer.drain()
        assert b"408" in await reader.readline()
        writer.close()


async def test_truncated_body_is_counted() -> None:
    before = count("at-once", "unreadable")
    async with serving() as fixture:
        _, writer = await asyncio.open_connection(HOST, fixture.server.port, ssl=fixture.trusting)
        writer.write(b"POST /at-once/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{" % KEY.encode())
        await writer.drain()
        writer.transport.abort()
        async with asyncio.timeout(30):
            while count("at-once", "unreadable") == before:  # noqa: ASYNC110 - the server detects it asynchronously
                await asyncio.sleep(0.01)
        async with fixture.session() as session:
            assert (await post_review(session, f"{fixture.url}/at-once/{KEY}"))["allowed"]


async def test_port_in_use_is_a_one_line_error() -> None:
    async with serving() as fixture:
        with pytest.raises(
            ZonewiseError, match=r"^admission: Address already in use .*; choose a free address and port$"
        ):
            await AdmissionServer([], fixture.context, KEY.__eq__, host=HOST, port=fixture.server.port).__aenter__()


STRANGERS = {
    "no key": ("POST", "/at-once"),
    "empty key": ("POST", "/at-once/"),
    "wrong key": ("POST", f"/at-once/{'6' * 64}"),
    "part of the key": ("POST", f"/at-once/{KEY[:-1]}"),
    "more than the key": ("POST", f"/at-once/{KEY}/x"),
    "not ASCII": ("POST", "/at-once/\u00e4"),
    "unknown webhook": ("POST", f"/elsewhere/{KEY}"),
    "not POST": ("GET", f"/at-once/{KEY}"),
    "root": ("POST", "/"),
}


@pytest.mark.parametrize(("method", "path"), STRANGERS.values(), ids=STRANGERS)
async def test_stranger_gets_one_plain_refusal(method: str, path: str) -> None:
    before = refused_callers()
    async with serving() as fixture, fixture.session() as session:
        fixture.decisions.error = RuntimeError("must not be asked")
        async with session.request(method, f"{fixture.url}{path}", json=review_request()) as response:
            assert (response.status, await response.text()) == (404, "404: Not Found")
    assert refused_callers() == before + 1


def refused_callers() -> float:
    return REGISTRY.get_sample_value("zonewise_admission_refused_callers_total") or 0.0


async def test_body_of_a_stranger_is_not_awaited() -> None:
    async with serving() as fixture:
        reader, writer = await asyncio.open_connection(HOST, fixture.server.port, ssl=fixture.trusting)
        writer.write(b"POST /at-once HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        await writer.drain()
        assert b"404" in await asyncio.wait_for(reader.read(), 30)  # to the end: the connection is closed
        writer.close()


async def test_strangers_are_logged_once_and_no_key_ever() -> None:
    with capture_logs() as lines:
        async with serving() as fixture, fixture.session() as session:
            for _ in range(20):
                async with session.post(f"{fixture.url}/at-once/{'6' * 64}"):
                    pass
            await post_review(session, f"{fixture.url}/at-once/{KEY}")
    assert [line["event"] for line in lines].count("callers without a valid key refused") == 1
    assert KEY not in str(lines)
    assert "6" * 64 not in str(lines)


async def test_answers_of_a_stopping_process_close_their_connection() -> None:
    """The API server then opens another one, which goes to a server that stays."""
    async with serving() as fixture, fixture.session() as session:
        for stopping in (False, True):
            fixture.decisions.stopping = stopping
            async with session.post(f"{fixture.url}/at-once/{KEY}", json=review_request()) as answer:
                assert answer.status == 200
                assert (answer.headers.get("Connection") == "close") is stopping


async def test_client_certificate_is_demanded_with_a_client_ca(tmp_path: Path) -> None:
    """A certificate that we issue to our own servers is no client certificate, even if it is of the same CA."""
    api_servers, strangers = trustme.CA(), trustme.CA()
    (tmp_path / "ca.pem").write_bytes(api_servers.cert_pem.bytes() + AUTHORITY.certificate_pem)
    context = server_context(tmp_path / "ca.pem")
    install(context, new_leaf())
    webhooks = [Webhook("at-once", Pod, Decisions().at_once, FAILED)]
    async with AdmissionServer(webhooks, context, KEY.__eq__, host=HOST, port=0) as server:
        url = f"https://{HOST}:{server.port}/at-once/{KEY}"
        none, stranger, ours, api_server = (
            ssl.create_default_context(cadata=AUTHORITY.certificate_pem.decode()) for _ in range(4)
        )
        strangers.issue_cert("apiserver").configure_cert(stranger)
        install(ours, new_leaf())
        api_servers.issue_cert("apiserver").configure_cert(api_server)
        for refused in (none, stranger, ours):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await post_with(refused, url)
        assert (await post_with(api_server, url))["allowed"]


async def post_with(context: ssl.SSLContext, url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        return await post_review(session, url)


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_unusable_client_ca_is_a_one_line_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ZonewiseError, match=r"ca\.pem: no PEM file with the CA of the API servers"):
        server_context(path)


def tls_versions(fixture: ServerFixture, maximum: ssl.TLSVersion) -> str | None:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem.decode())
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = maximum
    context.set_ciphers("ALL:@SECLEVEL=0")
    plain = socket.create_connection((HOST, fixture.server.port))
    with plain, context.wrap_socket(plain, server_hostname=HOST) as encrypted:
        return encrypted.version()


async def test_tls_below_1_2_is_refused() -> None:
    async with serving() as fixture:
        assert await asyncio.to_thread(tls_versions, fixture, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(tls_versions, fixture, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(tls_versions, fixture, ssl.TLSVersion.TLSv1_1)


async def connection(fixture: ServerFixture) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, fixture.server.port, ssl=fixture.trusting)


def certificate_of(writer: asyncio.StreamWriter) -> bytes:
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return certificate


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"POST /at-once/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % KEY.encode())
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    await reader.readexactly(int(length.split(b":")[1]))
    return head


async def test_kept_connections_survive_a_new_certificate() -> None:
    async with serving() as fixture:
        old = await connection(fixture)
        assert (await exchange(*old)).startswith(b"HTTP/1.1 400")
        install(fixture.context, new_leaf())
        assert (await exchange(*old)).startswith(b"HTTP/1.1 400")
        new = await connection(fixture)
        assert certificate_of(new[1]) != certificate_of(old[1])
        assert (await exchange(*new)).startswith(b"HTTP/1.1 400")
        for _, writer in (old, new):
            writer.close()


async def test_shutdown_finishes_running_requests_and_accepts_none() -> None:
    async with serving() as fixture, fixture.session() as session:
        asking = asyncio.create_task(post_review(session, f"{fixture.url}/when-released/{KEY}"))
        await fixture.decisions.arrived.wait()
        port = fixture.server.port
        leaving = asyncio.create_task(fixture.server.__aexit__())
        await refused(port)
        assert not leaving.done()
        fixture.decisions.released.set()
        assert (await asking)["status"]["message"] == "released"
        await leaving
        assert not fixture.decisions.cancelled


async def refused(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # closed during the connection attempt
                continue
            writer.close()
            await asyncio.sleep(0.01)
