"""HTTP proxy settings in the environment, as Go reads them."""

import pytest
from yarl import URL

from zonewise.kube.wire.http_proxy import environment_proxy, proxy_of, without_userinfo

SERVER = "https://api.example.com:6443"
PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        pytest.param(SERVER, {}, "", id="none"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY}, PROXY, id="upper case"),
        pytest.param(SERVER, {"https_proxy": PROXY}, PROXY, id="lower case"),
        pytest.param(SERVER, {"HTTP_PROXY": PROXY}, "", id="for http only"),
        pytest.param("http://api", {"HTTP_PROXY": PROXY}, PROXY, id="plain http"),
        pytest.param(SERVER, {"HTTPS_PROXY": "proxy:3128"}, PROXY, id="without a scheme"),
        pytest.param("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, "", id="loopback"),
        pytest.param("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, "", id="loopback, IPv6"),
        pytest.param("https://localhost:6443", {"HTTPS_PROXY": PROXY}, "", id="localhost"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "", id="no proxy at all"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "example.com"}, "", id="a domain and below"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "no_proxy": "a, .example.com"}, "", id="below a domain"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "*.example.com"}, "", id="starred"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": ".api.example.com"}, PROXY, id="only below"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "ample.com"}, PROXY, id="not a part of a name"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "api.example.com:6443"}, "", id="port"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "api.example.com:1"}, PROXY, id="another port"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "", id="network"),
        pytest.param("https://11.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, PROXY, id="outside"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.1.2.3"}, "", id="address"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.1.2.3:443"}, "", id="address and port"),
        pytest.param(SERVER, {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8,,"}, PROXY, id="a name is in no network"),
    ],
)
def test_proxy_is_chosen_from_the_environment(server: str, environment: dict[str, str], proxy: str) -> None:
    assert environment_proxy(server, environment) == proxy


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (PROXY, PROXY),
        ("http://joe:hunter2@proxy:3128", PROXY),
        ("socks5://joe:hun/t@er2@proxy:3128", "socks5://proxy:3128"),
        ("joe:hunter2@proxy:3128", "proxy:3128"),
        ("", ""),
    ],
)
def test_proxy_user_is_redacted(url: str, shown: str) -> None:
    assert without_userinfo(url) == shown


@pytest.mark.parametrize(
    ("url", "proxy", "headers"),
    [
        ("", None, {}),
        (PROXY, URL(PROXY), {}),
        ("http://joe@proxy:3128", URL(PROXY), {"Proxy-Authorization": "Basic am9lOg=="}),
        ("http://joe:hunter2@proxy:3128", URL(PROXY), {"Proxy-Authorization": "Basic am9lOmh1bnRlcjI="}),
        ("http://joe:%40%C3%BC@proxy:3128", URL(PROXY), {"Proxy-Authorization": "Basic am9lOkDDvA=="}),
    ],
)
def test_proxy_password_is_sent_in_a_header(url: str, proxy: URL | None, headers: dict[str, str]) -> None:
    assert proxy_of(url) == (proxy, headers)
