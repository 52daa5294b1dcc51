"""Probes and metrics, asked over HTTP as a kubelet and a scraper would."""

import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
import trustme

from zonewise.errors import ZonewiseError
from zonewise.kube.server import health
from zonewise.kube.server.health import Health


@pytest.fixture
def state() -> Health:
    return Health()


@pytest.fixture
async def base(state: Health) -> AsyncIterator[str]:
    async with health.serve(state, "127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}"


async def ask(url: str, **options: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.text()


async def test_a_process_is_alive_at_once_and_ready_when_it_says_so(state: Health, base: str) -> None:
    assert await ask(f"{base}/livez") == (200, "ok\n")
    assert await ask(f"{base}/readyz") == (
        500,
        "[-]phase failed: the process is starting\nreadyz check failed\n",
    )
    state.started()
    assert await ask(f"{base}/readyz") == (200, "ok\n")
    state.stopping()
    assert (await ask(f"{base}/readyz"))[0] == 500
    state.started()
    assert (await ask(f"{base}/readyz"))[0] == 500, "there is no way back"


async def test_named_checks_decide_and_are_shown(state: Health, base: str) -> None:
    trouble: str | None = "pods are 40 s old"
    state.started()
    state.add_ready("caches", lambda: trouble)
    state.add_live("loop", lambda: None)
    assert await ask(f"{base}/readyz") == (
        500,
        "[+]phase ok\n[-]caches failed: pods are 40 s old\nreadyz check failed\n",
    )
    assert await ask(f"{base}/readyz?exclude=caches") == (200, "ok\n")
    assert await ask(f"{base}/livez?verbose") == (200, "[+]ping ok\n[+]loop ok\nlivez check passed\n")
    trouble = None
    assert await ask(f"{base}/readyz?verbose") == (200, "[+]phase ok\n[+]caches ok\nreadyz check passed\n")


async def test_a_failing_live_check_asks_for_a_restart(state: Health, base: str) -> None:
    state.add_live("queue", lambda: "a worker has held key a for 3600 s")
    assert (await ask(f"{base}/livez"))[0] == 500


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("text/plain", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
)
async def test_metrics_are_there_in_the_format_asked_for(base: str, accept: str, content_type: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{base}/metrics", headers={"Accept": accept}) as answer:
        assert answer.status == 200
        assert answer.content_type == content_type
        assert "# TYPE python_info gauge" in await answer.text()


async def test_what_is_not_served_is_not_found(base: str) -> None:
    assert (await ask(f"{base}/secrets"))[0] == 404


async def test_probes_over_tls(state: Health) -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    async with health.serve(state, "127.0.0.1", tls=server) as port:
        assert await ask(f"https://127.0.0.1:{port}/livez", ssl=client) == (200, "ok\n")


async def test_an_address_in_use_is_a_one_line_error(state: Health) -> None:
    async with health.serve(state, "127.0.0.1") as port:
        with pytest.raises(
            ZonewiseError, match=f"'127.0.0.1', {port}.*: address already in use; choose a free address"
        ):
            async with health.serve(Health(), "127.0.0.1", port):
                pass
