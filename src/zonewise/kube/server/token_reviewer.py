"""Authorization of bearer tokens by the API server, as kube-rbac-proxy does it.

A TokenReview identifies the token's user, a SubjectAccessReview says whether that user has one permission. Verdicts are
remembered for a minute; `zonewise.kube.decide.token_verdicts` says which reviews may be made now. There is no session
state, so replicas are independent.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from zonewise.kube.client.client import Client
from zonewise.kube.decide.token_verdicts import NO_TOKEN, TOO_MANY, TokenVerdict, TokenVerdicts
from zonewise.kube.wire.errors import ApiError
from zonewise.log import get_logger
from zonewise.objects import Resource

REVIEW_SECONDS: Final = 10.0
REVIEWS_PER_SECOND: Final = 20
REVIEWS_AT_ONCE: Final = 40

_TOKEN_REVIEWS: Final[Resource[dict[str, Any]]] = Resource(
    dict[str, Any], "TokenReview", "tokenreviews", "authentication.k8s.io", namespaced=False
)
_ACCESS_REVIEWS: Final[Resource[dict[str, Any]]] = Resource(
    dict[str, Any], "SubjectAccessReview", "subjectaccessreviews", "authorization.k8s.io", namespaced=False
)
_UNAVAILABLE: Final = TokenVerdict(503, "the API server can't be asked who you are; try again")

_log = get_logger(__name__)


class TokenReviewer:
    """`permission` are attributes of a SubjectAccessReview, `described` says them in words."""

    def __init__(
        self,
        client: Client,
        permission: Mapping[str, Any],
        described: str,
        *,
        audience: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`audience`: tokens for it are accepted, besides those for the API server itself."""
        self._client = client
        self._limited = client.limited("reviews", REVIEWS_PER_SECOND, REVIEWS_AT_ONCE)
        self._permission = permission
        self._described = described
        self._audience = audience
        self._clock = clock
        self._verdicts = TokenVerdicts()

    async def authorize(self, token: str, address: str) -> TokenVerdict:
        """`address` is the client's."""
        if not token:
            return NO_TOKEN
        digest = hashlib.sha256(token.encode()).digest()
        verdict = self._verdicts.find(digest, self._clock())
        if verdict is not None:
            return verdict
        if self._verdicts.is_known(digest):
            return await self._review(self._client, token, digest)
        if not self._verdicts.begin(address):
            return TOO_MANY
        try:
            return await self._review(self._limited, token, digest)
        finally:
            self._verdicts.end(address)

    async def _review(self, client: Client, token: str, digest: bytes) -> TokenVerdict:
        try:
            verdict = await self._ask(client, token)
        except ApiError as error:
            _log.warning("token review failed", error=str(error))
            return _UNAVAILABLE
        self._verdicts.remember(digest, verdict, self._clock())
        return verdict

    async def _ask(self, client: Client, token: str) -> TokenVerdict:
        user = await self._identify(client, token)
        if user is None:
            return TokenVerdict(401, "the API server does not know this token")
        name = str(user.get("username", ""))
        spec = {
            "user": name,
            "groups": user.get("groups", []),
            "uid": user.get("uid", ""),
            "extra": user.get("extra", {}),
            **self._permission,
        }
        review = await client.create(_ACCESS_REVIEWS, {"spec": spec}, deadline_seconds=REVIEW_SECONDS)
        allowed = bool(review.get("status", {}).get("allowed"))
        _log.info("access reviewed", user=name, allowed=allowed)
        if allowed:
            return TokenVerdict(user=name)
        return TokenVerdict(403, f"{name} may not {self._described}: ask for that permission", name)

    async def _identify(self, client: Client, token: str) -> dict[str, Any] | None:
        wanted = [self._audience] if self._audience and self._audience in _claimed_audiences(token) else []
        spec = {"token": token, "audiences": wanted}
        review = await client.create(_TOKEN_REVIEWS, {"spec": spec}, deadline_seconds=REVIEW_SECONDS)
        status = review.get("status", {})
        if not status.get("authenticated") or not set(wanted) <= set(status.get("audiences", [])):
            return None
        user: dict[str, Any] = status.get("user", {})
        return user


def _claimed_audiences(token: str) -> list[str]:
    """What a JSON web token says of itself, unchecked: the API server is then asked about that audience."""
    parts = token.split(".")
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=="), type=dict[str, Any])
    except (IndexError, ValueError, msgspec.DecodeError):
        return []
    audience = claims.get("aud", [])
    return audience if isinstance(audience, list) else [audience]
