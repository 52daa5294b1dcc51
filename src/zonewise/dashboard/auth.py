"""Who may look: anyone on this machine where the page is served on loopback only, else whom the API server lets.

A token comes in the Authorization header, or in a cookie that the page's own form sets. The API server says whose it is
(TokenReview) and whether its owner may `get` `dashboards.zonewise.dev` (SubjectAccessReview). Answers are kept for a
minute; nothing about a viewer is kept elsewhere, so replicas need not know of each other.
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
KEPT_SECONDS: Final = 60.0
REFUSAL_KEPT_SECONDS: Final = 10.0
MOST_KEPT: Final = 1024
MOST_ASKED_AT_ONCE: Final = 8
LONGEST_TOKEN: Final = 3000
"""Cookies of more than 4 KB are dropped by browsers without a word."""

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
    """`refusal` is empty for those who may look; `login` tells whether another token could help."""

    refusal: str = ""
    login: bool = False
    user: str = ""


WELCOME: Final = AuthVerdict()


class Authenticator(Protocol):
    async def judge(self, request: web.Request) -> AuthVerdict: ...


class LoopbackAuthenticator:
    """Open to this machine. A name that somebody else points to 127.0.0.1 is not ours: a page of theirs could read along."""

    async def judge(self, request: web.Request) -> AuthVerdict:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if name == "localhost" or is_loopback(name.strip("[]")):
            return WELCOME
        return AuthVerdict(f"{name!r} is no name of this machine: open the page as localhost")


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class TokenReviewAuthenticator:
    """Asks the API server about every token it does not know."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, AuthVerdict]] = OrderedDict()
        self._asking = asyncio.Semaphore(MOST_ASKED_AT_ONCE)

    async def judge(self, request: web.Request) -> AuthVerdict:
        token = token_of(request)
        return await self.judge_token(token) if token else AuthVerdict("no token", login=True)

    async def judge_token(self, token: str) -> AuthVerdict:
        if len(token) > LONGEST_TOKEN:
            return AuthVerdict(f"the token is longer than {LONGEST_TOKEN} characters", login=True)
        name = hashlib.sha256(token.encode()).digest()
        until, verdict = self._kept.get(name, (0.0, WELCOME))
        if until > self._clock():
            return verdict
        try:
            async with self._asking:
                verdict = await self._review(token)
        except ApiError as error:
            _log.warning("nobody can be let in", error=str(error))
            return AuthVerdict("the API server can't be asked who you are; try again", login=True)
        self._keep(name, verdict)
        return verdict

    def _keep(self, name: bytes, verdict: AuthVerdict) -> None:
        seconds = REFUSAL_KEPT_SECONDS if verdict.refusal else KEPT_SECONDS
        self._kept[name] = (self._clock() + seconds, verdict)
        self._kept.move_to_end(name)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    async def _review(self, token: str) -> AuthVerdict:
        answered = (await self._client.create(TOKEN_REVIEWS, {"spec": {"token": token}})).get("status", {})
        if not answered.get("authenticated"):
            return AuthVerdict("the API server does not know this token", login=True)
        user = answered.get("user", {})
        spec = {
            "user": user.get("username", ""),
            "groups": user.get("groups", []),
            "uid": user.get("uid", ""),
            "extra": user.get("extra", {}),
            "resourceAttributes": PERMISSION,
        }
        allowed = (await self._client.create(ACCESS_REVIEWS, {"spec": spec})).get("status", {}).get("allowed", False)
        _log.info("someone asks to look", user=spec["user"], allowed=allowed)
        if allowed:
            return AuthVerdict(user=str(spec["user"]))
        return AuthVerdict(f"{spec['user']} may not get dashboards.zonewise.dev: ask for that permission", login=True)


def token_of(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    try:
        return base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")).decode()
    except (binascii.Error, ValueError):
        return ""


def as_cookie(token: str) -> str:
    return base64.urlsafe_b64encode(token.encode()).decode()
