"""Authorization of dashboard requests: everyone on this machine on loopback, else by the API server.

A token comes in the Authorization header, or in a cookie that the login form sets. A TokenReview identifies its user, and
a SubjectAccessReview checks that the user may `get` `dashboards.zonewise.dev`. Verdicts are cached for a minute. There is
no other session state, so replicas are independent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Protocol

from aiohttp import web

from zonewise import log
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import Resource

COOKIE: Final = "__Host-zonewise"
CACHE_SECONDS: Final = 60.0
REFUSAL_CACHE_SECONDS: Final = 10.0
MAX_CACHED: Final = 1024
MAX_CONCURRENT_REVIEWS: Final = 8
MAX_TOKEN_LENGTH: Final = 3000
"""Browsers silently drop cookies of more than 4 KB."""

TOKEN_REVIEWS: Final[Resource[dict[str, Any]]] = Resource(
    dict[str, Any], "TokenReview", "tokenreviews", "authentication.k8s.io", namespaced=False
)
ACCESS_REVIEWS: Final[Resource[dict[str, Any]]] = Resource(
    dict[str, Any], "SubjectAccessReview", "subjectaccessreviews", "authorization.k8s.io", namespaced=False
)
PERMISSION: Final = {"group": "zonewise.dev", "resource": "dashboards", "verb": "get"}

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuthVerdict:
    """`refusal` is empty if access is granted; `login`: another token could help."""

    refusal: str = ""
    login: bool = False
    user: str = ""


ALLOWED: Final = AuthVerdict()


class Authenticator(Protocol):
    async def authorize(self, request: web.Request) -> AuthVerdict: ...


class LoopbackAuthenticator:
    """Open to this machine. Foreign host names that resolve to 127.0.0.1 are refused, against DNS rebinding."""

    async def authorize(self, request: web.Request) -> AuthVerdict:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if name == "localhost" or is_loopback(name.strip("[]")):
            return ALLOWED
        return AuthVerdict(f"{name!r} is not a name of this machine: open the page as localhost")


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class TokenReviewAuthenticator:
    """Reviews tokens with the API server, and caches the verdicts."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._cache: OrderedDict[bytes, tuple[float, AuthVerdict]] = OrderedDict()
        self._reviews = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)

    async def authorize(self, request: web.Request) -> AuthVerdict:
        token = read_token(request)
        return await self.authorize_token(token) if token else AuthVerdict("no token", login=True)

    async def authorize_token(self, token: str) -> AuthVerdict:
        if len(token) > MAX_TOKEN_LENGTH:
            return AuthVerdict(f"the token is longer than {MAX_TOKEN_LENGTH} characters", login=True)
        digest = hashlib.sha256(token.encode()).digest()
        until, verdict = self._cache.get(digest, (0.0, ALLOWED))
        if until > self._clock():
            return verdict
        try:
            async with self._reviews:
                verdict = await self._review(token)
        except ApiError as error:
            _log.warning("token review failed", error=str(error))
            return AuthVerdict("the API server can't be asked who you are; try again", login=True)
        self._remember(digest, verdict)
        return verdict

    def _remember(self, digest: bytes, verdict: AuthVerdict) -> None:
        seconds = REFUSAL_CACHE_SECONDS if verdict.refusal else CACHE_SECONDS
        self._cache[digest] = (self._clock() + seconds, verdict)
        self._cache.move_to_end(digest)
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)

    async def _review(self, token: str) -> AuthVerdict:
        status = (await self._client.create(TOKEN_REVIEWS, {"spec": {"token": token}})).get("status", {})
        if not status.get("authenticated"):
            return AuthVerdict("the API server does not know this token", login=True)
        user = status.get("user", {})
        spec = {
            "user": user.get("username", ""),
            "groups": user.get("groups", []),
            "uid": user.get("uid", ""),
            "extra": user.get("extra", {}),
            "resourceAttributes": PERMISSION,
        }
        allowed = (await self._client.create(ACCESS_REVIEWS, {"spec": spec})).get("status", {}).get("allowed", False)
        _log.info("access reviewed", user=spec["user"], allowed=allowed)
        if allowed:
            return AuthVerdict(user=str(spec["user"]))
        return AuthVerdict(f"{spec['user']} may not get dashboards.zonewise.dev: ask for that permission", login=True)


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
