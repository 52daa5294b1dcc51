"""Authorization of dashboard requests: everyone on this machine on loopback, else by the API server.

A token comes in the Authorization header, or in a cookie that the login form sets. `zonewise.kube.server.token_reviewer`
asks the API server whether its user may `get` `dashboards.zonewise.dev`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, Protocol

from aiohttp import web

from zonewise.kube.client.client import Client
from zonewise.kube.decide.token_verdicts import TokenVerdict
from zonewise.kube.server.listening import is_loopback
from zonewise.kube.server.token_reviewer import TokenReviewer

COOKIE: Final = "__Host-zonewise"
MAX_TOKEN_LENGTH: Final = 3000
"""Browsers silently drop cookies of more than 4 KB."""
PERMISSION: Final = {"resourceAttributes": {"group": "zonewise.dev", "resource": "dashboards", "verb": "get"}}


class Authenticator(Protocol):
    async def authorize(self, request: web.Request) -> TokenVerdict: ...


class LoopbackAuthenticator:
    """Open to this machine. Foreign host names that resolve to 127.0.0.1 are refused, against DNS rebinding."""

    async def authorize(self, request: web.Request) -> TokenVerdict:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if is_loopback(name.strip("[]")):
            return TokenVerdict()
        return TokenVerdict(403, f"{name!r} is not a name of this machine: open the page as localhost")


class TokenReviewAuthenticator:
    """Open to users whom the API server authorizes."""

    def __init__(self, client: Client) -> None:
        self._reviewer = TokenReviewer(client, PERMISSION, "get dashboards.zonewise.dev")

    async def authorize(self, request: web.Request) -> TokenVerdict:
        return await self.authorize_token(read_token(request), request)

    async def authorize_token(self, token: str, request: web.Request) -> TokenVerdict:
        if len(token) > MAX_TOKEN_LENGTH:
            return TokenVerdict(401, f"the token is longer than {MAX_TOKEN_LENGTH} characters")
        return await self._reviewer.authorize(token, request.remote or "")


def read_token(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    try:
        return base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")).decode()
    except (binascii.Error, ValueError):
        return ""


def encode_cookie(token: str) -> str:
    return base64.urlsafe_b64encode(token.encode()).decode()
