"""API server responses as exceptions: class, message and action."""

import json
from typing import Any

import pytest

from zonewise.kube.wire.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    from_answer,
)


def status(code: int, reason: str, **rest: Any) -> bytes:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, **rest}
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", ApiError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (413, "RequestEntityTooLarge", ApiError),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (500, "ServerTimeout", ServerTimeout),
        (501, "", ServerError),
        (502, "", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", ServerTimeout),
        (302, "", ApiError),
    ],
)
def test_status_code_and_reason_select_the_error_class(code: int, reason: str, kind: type[ApiError]) -> None:
    error = from_answer(code, status(code, reason, message="as it is"), "get of pods a/b")
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (code, reason, "as it is")


def test_error_text_names_kind_action_and_message() -> None:
    error = from_answer(409, status(409, "Conflict", message="it has been modified"), "update of leases kube-system/x")
    assert str(error) == "conflict: update of leases kube-system/x: it has been modified"


def test_key_of_a_webhooks_caller_is_not_in_the_error() -> None:
    """An API server that can't reach a webhook shows its address; our errors end up in logs and events."""
    text = f'failed calling webhook: Post "https://guard.svc:443/evictions/{"ab" * 32}?timeout=10s": refused'
    error = from_answer(500, status(500, "InternalError", message=text), "evict")
    assert "/evictions/...?timeout=10s" in str(error)
    assert "ab" * 32 not in f"{error} {error.message}"


def test_causes_and_retry_after_are_kept() -> None:
    details = {
        "name": "p",
        "kind": "pods",
        "causes": [{"reason": "DisruptionBudget", "message": "needs 1", "field": ""}],
    }
    error = from_answer(429, status(429, "TooManyRequests", details={**details, "retryAfterSeconds": 10}), "evict")
    assert [cause.reason for cause in error.causes] == ["DisruptionBudget"]
    assert error.retry_after_seconds == 10


def test_retry_after_header_wins_over_the_body() -> None:
    error = from_answer(429, status(429, "TooManyRequests", details={"retryAfterSeconds": 10}), "list", retry_after="3")
    assert error.retry_after_seconds == 3


@pytest.mark.parametrize("header", ["", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "-1"])
def test_malformed_retry_after_header_is_ignored(header: str) -> None:
    assert from_answer(503, b"", "list", retry_after=header).retry_after_seconds == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            b"Too many requests, please try again later.\n",
            "Too many requests, please try again later.",
            id="flow control",
        ),
        pytest.param(b"404 page not found\n", "404 page not found", id="no such path"),
        pytest.param(b"", "HTTP status 429", id="empty"),
        pytest.param(b'{"kind":"Pod"}', '{"kind":"Pod"}', id="another kind"),
        pytest.param(b'{"kind":"Status","code":"x"}', '{"kind":"Status","code":"x"}', id="a Status of another shape"),
        pytest.param(b"\xff\xfe", "��", id="not text"),
        pytest.param(b'{"kind":"\xff"}', '{"kind":"�"}', id="JSON of no text"),
    ],
)
def test_body_that_is_no_status_becomes_the_message(body: bytes, message: str) -> None:
    error = from_answer(429, body, "list of pods")
    assert isinstance(error, TooManyRequests)
    assert error.message == message


def test_html_body_is_truncated() -> None:
    assert len(from_answer(502, b"<html>" * 10_000, "list of pods").message) == 500


def test_status_without_details_has_no_causes() -> None:
    assert from_answer(422, status(422, "Invalid", details={"causes": None}), "create").causes == ()


def test_unreachable_defaults_to_sent() -> None:
    assert Unreachable("reset").sent
    assert not Unreachable("refused", sent=False).sent


def test_error_without_an_action_has_a_readable_text() -> None:
    assert str(DeadlineExceeded("no answer within 30 s")) == "deadline exceeded: no answer within 30 s"
