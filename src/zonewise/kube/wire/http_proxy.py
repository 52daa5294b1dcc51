"""HTTP proxy settings from HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as Go's tools read them. Pure.

A proxy's URL may hold a password, which is sent to the proxy and never shown.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from yarl import URL


def environment_proxy(server: str, environment: Mapping[str, str]) -> str:
    """The proxy's URL, or nothing. Loopback is never proxied."""
    target = urlsplit(server)
    host = target.hostname or ""
    name = f"{target.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name) or ""
    if not proxy or _is_loopback(host):
        return ""
    exempt = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    port = target.port or (443 if target.scheme == "https" else 80)
    if any(_covers(rule.strip().lower(), host, port) for rule in exempt.split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def without_userinfo(url: str) -> str:
    """What may be shown of a URL, even of one that is not well formed."""
    scheme, mark, rest = url.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def proxy_of(url: str) -> tuple[URL | None, dict[str, str]]:
    """The proxy's URL and headers. Errors show the URL, so the password is not in it."""
    if not url:
        return None, {}
    proxy = URL(url)
    if proxy.user is None and proxy.password is None:
        return proxy, {}
    if ":" in (proxy.user or ""):
        raise ValueError('a ":" is not allowed in a user name (RFC 7617, section 2)')
    credentials = b64encode(f"{proxy.user or ''}:{proxy.password or ''}".encode()).decode()
    return proxy.with_user(None), {"Proxy-Authorization": f"Basic {credentials}"}


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _covers(rule: str, host: str, port: int) -> bool:
    """A rule is "*", an address, a network, or a domain with all below it (without itself if it starts with a dot)."""
    if not rule:
        return False
    if rule == "*":
        return True
    if (inside := _in_network(rule, host)) is not None:
        return inside
    name, colon, wanted_port = rule.partition(":")
    if colon and wanted_port != str(port):
        return False
    bare = name.removeprefix("*")
    return host.endswith(bare) if bare.startswith(".") else host == bare or host.endswith(f".{bare}")


def _in_network(rule: str, host: str) -> bool | None:
    """None when the rule is no address or network."""
    try:
        network = ip_network(rule.strip("[]"), strict=False)
    except ValueError:
        return None
    try:
        return ip_address(host) in network
    except ValueError:
        return False
