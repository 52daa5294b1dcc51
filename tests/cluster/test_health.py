"""Health probes and metrics over HTTP, as a kubelet and a scraper request them."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

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


async def get(url: str, **options: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as response:  # type: ignore[arg-type]
        return response.status, await response.text()


async def test_process_is_live_at_once_and_ready_after_started(state: Health, base: str) -> None:
    assert await get(f"{base}/livez") == (200, "ok\n")
    assert await get(f"{base}/readyz") == (
        500,
        "[-]phase failed: the process is starting\nreadyz check failed\n",
    )
    state.started()
    assert await get(f"{base}/readyz") == (200, "ok\n")
    state.stopping()
    assert (await get(f"{base}/readyz"))[0] == 500
    state.started()
    assert (await get(f"{base}/readyz"))[0] == 500, "a stopping process never becomes ready again"


async def test_named_checks_decide_readiness_and_are_shown(state: Health, base: str) -> None:
    trouble: str | None = "pods are 40 s old"
    state.started()
    state.add_ready("caches", lambda: trouble)
    state.add_live("loop", lambda: None)
    assert await get(f"{base}/readyz") == (
        500,
        "[+]phase ok\n[-]caches failed: pods are 40 s old\nreadyz check failed\n",
    )
    assert await get(f"{base}/readyz?exclude=caches") == (200, "ok\n")
    assert await get(f"{base}/livez?verbose") == (200, "[+]ping ok\n[+]loop ok\nlivez check passed\n")
    trouble = None
    assert await get(f"{base}/readyz?verbose") == (200, "[+]phase ok\n[+]caches ok\nreadyz check passed\n")


async def test_failing_live_check_fails_livez(state: Health, base: str) -> None:
    state.add_live("queue", lambda: "a worker has held key a for 3600 s")
    assert (await get(f"{base}/livez"))[0] == 500


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("text/plain", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
)
async def test_metrics_honour_the_accept_header(base: str, accept: str, content_type: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{base}/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.status == 200
        assert response.content_type == content_type
        assert "# TYPE python_info gauge" in await response.text()


async def test_unknown_path_returns_404(base: str) -> None:
    assert (await get(f"{base}/secrets"))[0] == 404


async def test_address_in_use_is_a_one_line_error(state: Health) -> None:
    async with health.serve(state, "127.0.0.1") as port:
        with pytest.raises(
            ZonewiseError, match=f"Address already in use .*'127.0.0.1', {port}.*; choose a free address"
        ):
            async with health.serve(Health(), "127.0.0.1", port):
                pass
