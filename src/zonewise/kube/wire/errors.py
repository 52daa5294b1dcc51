"""Errors of API calls, grouped by who must act. Pure.

Every failed call raises one `ApiError`. Its class says the kind, its text names the call: "conflict: update of leases
kube-system/x: the object has been modified". `from_answer` maps an HTTP answer or the Status of a watch event.
`ConfigError` stands apart: the user's kubeconfig is wrong, and asking again will not help.
"""

# ruff: noqa: N818 - the names are those of the API's own reasons

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from zonewise.errors import UsageError, ZonewiseError
from zonewise.redaction import hide_caller_keys


class ConfigError(UsageError):
    """The user's configuration is wrong; the message is one line that says what, where and what to do."""


class ErrorCause(msgspec.Struct, frozen=True):
    """One reason of several that the server gives, such as one invalid field."""

    reason: str = ""
    message: str = ""
    field: str = ""


class ErrorDetails(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    causes: tuple[ErrorCause, ...] | None = ()
    retry_after_seconds: int = 0


class ErrorStatus(msgspec.Struct, frozen=True):
    """The API server's own account of a failure: meta/v1 Status."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: ErrorDetails | None = None


class ApiError(ZonewiseError):
    """A call that failed; `action` is what was tried, such as "get of pods kube-system/dns-1"."""

    kind: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, action: str = "", status: int = 0, reason: str = "", details: ErrorDetails | None = None
    ) -> None:
        super().__init__(": ".join(part for part in (self.kind, action, message) if part))
        self.message = message
        self.action = action
        self.status = status
        self.reason = reason
        self.details = details or ErrorDetails()

    @property
    def causes(self) -> tuple[ErrorCause, ...]:
        return self.details.causes or ()

    @property
    def retry_after_seconds(self) -> float:
        """How long the server asked to wait; 0 when it did not say."""
        return float(self.details.retry_after_seconds)


class BadRequest(ApiError):
    kind = "bad request"


class Unauthorized(ApiError):
    kind = "unauthorized"


class Forbidden(ApiError):
    kind = "forbidden"


class NotFound(ApiError):
    kind = "not found"


class Conflict(ApiError):
    """The object changed since it was read, or a delete's precondition does not hold."""

    kind = "conflict"


class AlreadyExists(Conflict):
    kind = "already exists"


class Gone(ApiError):
    """The resource version or the continue token is older than what the server keeps: list again."""

    kind = "gone"


class Invalid(ApiError):
    kind = "invalid"


class TooManyRequests(ApiError):
    """The server is busy, or an eviction would break a budget (then `causes` says so)."""

    kind = "too many requests"


class ServerError(ApiError):
    """Any other 5xx."""

    kind = "server error"


class ServerTimeout(ServerError):
    kind = "server timeout"


class Unavailable(ServerError):
    """The server says that it is away, or a proxy before it does."""

    kind = "unavailable"


class Unreachable(ApiError):
    """No whole answer came: refused, reset, silent. `sent` says whether the request may have been processed."""

    kind = "unreachable"

    def __init__(self, message: str, *, action: str = "", sent: bool = True) -> None:
        super().__init__(message, action=action)
        self.sent = sent


class Untrusted(Unreachable):
    """TLS could not be agreed on: trying again will not help."""

    kind = "untrusted"


class DeadlineExceeded(ApiError):
    """The call's own deadline passed; whether a write was processed is unknown."""

    kind = "deadline exceeded"


class Undecodable(ApiError):
    """The server's answer does not fit the view it is read through."""

    kind = "undecodable"


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: ServerTimeout,
}
_BY_REASON: Mapping[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "ServerTimeout": ServerTimeout,
    "Timeout": ServerTimeout,
}

_LONGEST_PLAIN_TEXT = 500


def from_status(status: ErrorStatus, action: str, http_status: int = 0) -> ApiError:
    code = http_status or status.code
    fallback = ServerError if code >= 500 else ApiError
    kind = _BY_REASON.get(status.reason) or _BY_STATUS.get(code, fallback)
    # An API server that can't reach a webhook names its whole address: the key in it is for no log and no event.
    message = hide_caller_keys(status.message or status.reason or f"HTTP status {code}")
    return kind(message, action=action, status=code, reason=status.reason, details=status.details)


def from_answer(http_status: int, body: bytes, action: str, retry_after: str = "") -> ApiError:
    """Proxies and the flow-control filter answer in plain text, so a body need not be a Status."""
    status = read_status(body)
    if status is None:
        text = body[:_LONGEST_PLAIN_TEXT].decode(errors="replace").strip()
        status = ErrorStatus(code=http_status, message=text)
    if retry_after.isdecimal():
        details = status.details or ErrorDetails()
        waiting = msgspec.structs.replace(details, retry_after_seconds=int(retry_after))
        status = msgspec.structs.replace(status, details=waiting)
    return from_status(status, action, http_status)


def read_status(body: bytes) -> ErrorStatus | None:
    try:
        status = msgspec.json.decode(body, type=ErrorStatus)
    except ValueError:  # of msgspec, or of text that is not UTF-8
        return None
    return status if status.kind == "Status" else None
