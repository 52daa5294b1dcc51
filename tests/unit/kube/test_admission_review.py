"""AdmissionReview v1: decoding of requests and encoding of responses."""

import base64
from typing import Any

import msgspec
import pytest

from zonewise.kube.wire import admission_review
from zonewise.kube.wire.admission_review import AdmissionVerdict, Operation, ReviewError
from zonewise.kube.wire.errors import ErrorCause
from zonewise.objects import Metadata, Pod

QUESTION: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "eviction",
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "name": "web-0",
        "namespace": "shop",
        "operation": "DELETE",
        "userInfo": {"username": "ann", "uid": "7", "groups": ["sre"], "extra": {"scopes": ["all"]}},
        "object": None,
        "oldObject": {"metadata": {"name": "web-0"}, "spec": {"nodeName": "n1", "unheardOf": [1]}},
        "dryRun": True,
        "options": {"kind": "DeleteOptions", "gracePeriodSeconds": 0},
    },
}


def read(question: Any) -> admission_review.Review[Pod]:
    return admission_review.read(msgspec.json.encode(question), admission_review.decoder_for(Pod))


def test_request_is_decoded_through_the_view() -> None:
    review = read(QUESTION)
    assert (review.uid, review.operation, review.sub_resource) == ("u-1", Operation.DELETE, "eviction")
    assert (review.name, review.namespace, review.dry_run) == ("web-0", "shop", True)
    assert (review.kind.kind, review.resource.resource) == ("Pod", "pods")
    assert (review.user_info.username, review.user_info.groups) == ("ann", ("sre",))
    assert review.object is None
    assert review.old_object is not None
    assert review.old_object.metadata == Metadata(name="web-0")
    assert review.old_object.spec.node_name == "n1"
    assert review.options == {"kind": "DeleteOptions", "gracePeriodSeconds": 0}


def test_request_may_be_decoded_in_full() -> None:
    review = admission_review.read(msgspec.json.encode(QUESTION), admission_review.decoder_for(dict[str, Any]))
    assert review.old_object == QUESTION["request"]["oldObject"]


UNREADABLE = {
    "not JSON": (b"{", "not a readable AdmissionReview"),
    "not UTF-8": (b'{"kind": "\xff"}', "not a readable AdmissionReview"),
    "empty": (b"", "not a readable AdmissionReview"),
    "not an object": (b"[]", "not a readable AdmissionReview"),
    "another kind": (b"{}", "expected AdmissionReview of admission.k8s.io/v1"),
    "an old version": (
        msgspec.json.encode({**QUESTION, "apiVersion": "admission.k8s.io/v1beta1"}),
        r"set admissionReviewVersions: \[v1\]",
    ),
    "no request": (msgspec.json.encode({**QUESTION, "request": None}), "has no request"),
    "no uid": (msgspec.json.encode({**QUESTION, "request": {"operation": "CREATE"}}), "required field `uid`"),
    "an object of another shape": (
        msgspec.json.encode({**QUESTION, "request": {**QUESTION["request"], "object": {"spec": 1}}}),
        r"\$.request.object.spec",
    ),
}


@pytest.mark.parametrize(("body", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_malformed_review_raises(body: bytes, problem: str) -> None:
    with pytest.raises(ReviewError, match=problem):
        admission_review.read(body, admission_review.decoder_for(Pod))


def response_to(verdict: AdmissionVerdict) -> dict[str, Any]:
    answer = msgspec.json.decode(admission_review.answer("u-1", verdict))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = answer["response"]
    return response


def test_allow_has_uid_and_allowed_only() -> None:
    assert response_to(AdmissionVerdict.allow()) == {"uid": "u-1", "allowed": True}


def test_allow_with_a_patch_and_warnings() -> None:
    operations = [{"op": "add", "path": "/metadata/labels/a~1b", "value": "c"}]
    response = response_to(AdmissionVerdict.allow(patch=operations, warnings=["mind the gap"]))
    assert response["patchType"] == "JSONPatch"
    assert msgspec.json.decode(base64.b64decode(response["patch"])) == operations
    assert response["warnings"] == ["mind the gap"]


def test_deny_has_code_and_message() -> None:
    assert response_to(AdmissionVerdict.deny("no")) == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }


def test_deny_carries_causes_retry_after_and_warnings() -> None:
    cause = ErrorCause(reason="ZoneBudget", message="zone a would lose its last pod", field="spec.zone")
    response = response_to(
        AdmissionVerdict.deny("later", code=429, causes=[cause], retry_after_seconds=7, warnings=["a budget is frozen"])
    )
    assert response["status"] == {
        "code": 429,
        "reason": "TooManyRequests",
        "message": "later",
        "details": {
            "causes": [
                {"reason": "ZoneBudget", "message": "zone a would lose its last pod", "field": "spec.zone"},
            ],
            "retryAfterSeconds": 7,
        },
    }
    assert response["warnings"] == ["a budget is frozen"]


@pytest.mark.parametrize("code", [0, 200, 418])
def test_codes_unknown_to_clients_are_refused(code: int) -> None:
    with pytest.raises(ValueError, match="is not a code to deny with"):
        AdmissionVerdict.deny("no", code=code)
