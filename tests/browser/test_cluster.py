"""The page with a real API server: changes of the cluster, measured traffic, and authorization."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry, Counter, generate_latest

from support.dashboard.cluster import SAME_ZONE, ZONE, node, service, slice_of
from support.dashboard.server import OpenPage, start_dashboard, stop_dashboard
from zonewise.lab.controlplane.controlplane import ControlPlane

ZONES = ("zone-a", "zone-b", "zone-c")
HOMES = [(f"{zone}-{at}", zone) for zone in ZONES for at in (1, 2)]
ADDRESSES = {zone: f"127.0.0.{at}" for at, zone in enumerate(ZONES, 1)}
SERVICES = "/api/v1/namespaces/shop/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


class Proxies:
    """Metrics servers of three zones with the counters of the Zonewise proxy, at the addresses of the nodes."""

    def __init__(self) -> None:
        labels = ("namespace", "service", "client_zone", "endpoint_zone")
        self.port = 0
        self._registries = {zone: CollectorRegistry() for zone in ZONES}
        self._bytes = {
            zone: Counter("zonewise_proxy_bytes", "Bytes", labels, registry=registry)
            for zone, registry in self._registries.items()
        }

    def count(self, client: str, endpoint: str, number: int) -> None:
        self._bytes[client].labels("shop", "catalog", client, endpoint).inc(number)

    @contextmanager
    def serving(self) -> Iterator[None]:
        with ExitStack() as stack:
            for zone in ZONES:
                server = ThreadingHTTPServer((ADDRESSES[zone], self.port), self._handler(zone))
                self.port = server.server_port
                thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
                thread.start()
                for step in (server.server_close, thread.join, server.shutdown):
                    stack.callback(step)
            yield

    def _handler(self, zone: str) -> type[BaseHTTPRequestHandler]:
        registry = self._registries[zone]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(generate_latest(registry))

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    servers = Proxies()
    with servers.serving():
        yield servers


@pytest.fixture(scope="module")
def shop(plane: ControlPlane) -> ControlPlane:
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    for name, zone in HOMES:
        plane.request("POST", "/api/v1/nodes", node(name, zone, address=ADDRESSES[zone]))
    add_service(plane, "catalog", HOMES * 2)
    return plane


@pytest.fixture(scope="module")
def url(shop: ControlPlane, proxies: Proxies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("dashboard") / "log"
    dashboard = start_dashboard(log, "--kubeconfig", str(shop.kubeconfig), "--proxy-port", str(proxies.port))
    yield dashboard.url
    stop_dashboard(dashboard)


def add_service(plane: ControlPlane, name: str, places: list[tuple[str, str]]) -> None:
    body = service(name, "shop")
    body["spec"] = {"selector": {"app": name}, "ports": [{"port": 80}]}
    plane.request("POST", SERVICES, body)
    plane.request("POST", SLICES, slice_of(name, "shop", places))


def test_changes_of_the_cluster_appear_on_the_page(shop: ControlPlane, url: str, open_page: OpenPage) -> None:
    page = open_page(f"{url}#services")
    row = page.locator(".rows .row", has_text="catalog")
    expect(row.locator(".bar-text")).to_have_text("33 %")
    shop.request("PATCH", f"{SERVICES}/catalog", {"metadata": {"annotations": {SAME_ZONE: "Prefer"}}})
    expect(row.locator(".c1")).to_have_text("same-zone Prefer")
    expect(row.locator(".bar-text")).to_have_text("100 %")
    add_service(shop, "cart", HOMES[:1])
    expect(page.locator(".rows .name")).to_contain_text(["cart"])
    shop.request("PATCH", f"{SERVICES}/catalog", {"metadata": {"annotations": {SAME_ZONE: '<b>"&'}}})
    row.click()
    expect(page.locator(".detail")).to_contain_text('<b>"&')
    shop.request("DELETE", f"{SERVICES}/cart")
    expect(page.locator(".rows .name", has_text="cart")).to_have_count(0)
    page.keyboard.press("1")
    shop.request("PATCH", "/api/v1/nodes/zone-b-1", {"spec": {"unschedulable": True}})
    expect(page.locator(".node.cordoned")).to_have_count(1)
    shop.request(
        "PATCH", "/api/v1/nodes/zone-b-1", {"spec": {"unschedulable": None}, "metadata": {"labels": {ZONE: "zone-d"}}}
    )
    expect(page.locator(".zone-name", has_text="zone-d")).to_be_visible()
    shop.request("PATCH", "/api/v1/nodes/zone-b-1", {"metadata": {"labels": {ZONE: "zone-b"}}})
    expect(page.locator(".zone-name")).to_have_count(3)


def count_traffic(proxies: Proxies) -> None:
    """Three quarters stay in zone. The page shows the last minute only, so slow tests must count again."""
    proxies.count("zone-a", "zone-a", 600_000)
    proxies.count("zone-a", "zone-b", 150_000)
    proxies.count("zone-c", "zone-b", 50_000)


def test_measured_traffic_appears_on_the_map(proxies: Proxies, url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    crossing = page.locator(".figure.crosses .figure-value")
    expect(crossing).not_to_have_text("\N{EN DASH}")
    count_traffic(proxies)
    expect(page.locator(".figure.stays .figure-value")).to_have_text("75 %")
    expect(page.locator(".flow")).to_have_count(2)
    expect(crossing).to_contain_text("kB/s")
    page.get_by_text("Traffic as a table").click()
    expect(page.locator(".as-table tbody tr")).to_have_count(3)
    count_traffic(proxies)
    page.keyboard.press("2")
    expect(page.locator(".rows .row .bar-text").first).to_have_attribute("title", "measured; 33 % forecast")
    count_traffic(proxies)
    later = open_page(url)
    expect(later.locator(".figure.stays .figure-value")).to_have_text("75 %")


@pytest.fixture
def login_url(shop: ControlPlane, tmp_path: Path) -> Iterator[str]:
    dashboard = start_dashboard(tmp_path / "log", "--kubeconfig", str(shop.kubeconfig), "--login")
    yield dashboard.url
    stop_dashboard(dashboard)


def test_the_api_server_authorizes_viewers(shop: ControlPlane, login_url: str, open_page: OpenPage) -> None:
    assert login_url.startswith("https://")
    tokens = {name: create_token(shop, name) for name in ("friend", "stranger")}
    allow(shop, "friend")
    assert [status(login_url, "events", token) for token in ("", "nonsense", tokens["stranger"])] == [401, 401, 403]
    assert status(login_url, "simulation", tokens["friend"]) == 200
    page = open_page(login_url, live=False)
    for token in ("nonsense", tokens["stranger"]):
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("rejected this token")
    page.get_by_label("Token").fill(tokens["friend"])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector('#connection[data-state="live"]')
    expect(page.locator(".zone")).to_have_count(3)
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []


def create_token(plane: ControlPlane, name: str) -> str:
    accounts = "/api/v1/namespaces/shop/serviceaccounts"
    plane.request("POST", accounts, {"metadata": {"name": name}})
    token: str = plane.request("POST", f"{accounts}/{name}/token", {"spec": {}})["status"]["token"]
    return token


def allow(plane: ControlPlane, name: str) -> None:
    rules = [{"apiGroups": ["zonewise.dev"], "resources": ["dashboards"], "verbs": ["get"]}]
    plane.request("POST", f"{ROLES}/clusterroles", {"metadata": {"name": "viewer"}, "rules": rules})
    binding = {
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "shop"}],
    }
    plane.request("POST", f"{ROLES}/clusterrolebindings", binding)


def status(url: str, path: str, token: str) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(f"{url}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
