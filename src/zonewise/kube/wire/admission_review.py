"""AdmissionReview v1: requests of the API server and the verdicts in reply. Pure.

`zonewise.kube.server.admission` serves it. A handler gets a `Review` whose objects are read through the view it asked
for, and returns an `AdmissionVerdict`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import msgspec

from zonewise.kube.wire.codec import UNREADABLE
from zonewise.kube.wire.errors import ErrorCause
from zonewise.objects import View

T = TypeVar("T")

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

_REASONS: Final = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class ReviewError(ValueError):
    """The body is not a review we can answer; the message says what was expected."""


class Operation(StrEnum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


class UserInfo(View, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()


class GroupVersionKind(View, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(View, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class Review(View, Generic[T], frozen=True):
    """One request to be judged. `name` is empty for some deletes: take it from `old_object` then.

    A `dry_run` must have no effect: the request is not carried out even if it is allowed.
    """

    uid: str
    operation: Operation
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: T | None = None
    old_object: T | None = None
    dry_run: bool = False
    options: dict[str, Any] | None = None


class AdmissionReview(View, Generic[T], frozen=True):
    api_version: str = ""
    kind: str = ""
    request: Review[T] | None = None


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    """Made by `allow` or `deny`."""

    allowed: bool
    message: str = ""
    code: int = 0
    causes: tuple[ErrorCause, ...] = ()
    retry_after_seconds: int = 0
    warnings: tuple[str, ...] = ()
    patch: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def allow(cls, *, patch: Sequence[Mapping[str, Any]] = (), warnings: Sequence[str] = ()) -> AdmissionVerdict:
        """`patch` holds JSON patch operations, for mutating webhooks only."""
        return cls(allowed=True, patch=tuple(patch), warnings=tuple(warnings))

    @classmethod
    def deny(
        cls,
        message: str,
        *,
        code: int = 403,
        causes: Sequence[ErrorCause] = (),
        retry_after_seconds: int = 0,
        warnings: Sequence[str] = (),
    ) -> AdmissionVerdict:
        """`retry_after_seconds` makes clients wait inside the call: good for evictions, bad for controllers."""
        if code not in _REASONS:
            raise ValueError(f"{code} is not a code to deny with; use one of {', '.join(map(str, _REASONS))}")
        return cls(
            allowed=False,
            message=message,
            code=code,
            causes=tuple(causes),
            retry_after_seconds=retry_after_seconds,
            warnings=tuple(warnings),
        )


def decoder_for(view: type[T]) -> msgspec.json.Decoder[AdmissionReview[T]]:
    return msgspec.json.Decoder(AdmissionReview[view])  # type: ignore[valid-type] # a parameter only at run time


def read(body: bytes, decoder: msgspec.json.Decoder[AdmissionReview[T]]) -> Review[T]:
    try:
        review = decoder.decode(body)
    except UNREADABLE as error:
        raise ReviewError(f"the body is not a readable {KIND}: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise ReviewError(
            f"expected {KIND} of {API_VERSION}, not {review.kind!r} of {review.api_version!r}; "
            "set admissionReviewVersions: [v1] in the webhook configuration"
        )
    if review.request is None:
        raise ReviewError(f"the {KIND} has no request")
    return review.request


def answer(uid: str, verdict: AdmissionVerdict) -> bytes:
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = _status(verdict)
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    if verdict.patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(verdict.patch)).decode()}
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _status(verdict: AdmissionVerdict) -> dict[str, Any]:
    status: dict[str, Any] = {"code": verdict.code, "reason": _REASONS[verdict.code], "message": verdict.message}
    details: dict[str, Any] = {}
    if verdict.causes:
        details["causes"] = verdict.causes
    if verdict.retry_after_seconds:
        details["retryAfterSeconds"] = verdict.retry_after_seconds
    return {**status, "details": details} if details else status
