"""AdmissionReview bodies: read through each webhook's view, or refused with a sentence; any uid can be answered."""

from __future__ import annotations

import json

from zonewise.kube.wire import admission_review
from zonewise.kube.wire.admission_review import AdmissionVerdict, ReviewError
from zonewise.objects import EndpointSlice, Pod
from zonewise.objects.policy import Eviction

POD = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}],
    },
    "spec": {"nodeName": "n1"},
}
SLICE = {
    "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "hints": {"forZones": [{"name": "a"}]}}],
    "ports": [{"name": "p", "port": 1}],
}
EVICTION = {
    "metadata": {"name": "p", "namespace": "n"},
    "deleteOptions": {"dryRun": ["All"], "preconditions": {"uid": "u"}},
}
REQUEST = {
    "uid": "r",
    "operation": "CREATE",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "resource": {"resource": "pods"},
    "subResource": "eviction",
    "name": "p",
    "namespace": "n",
    "userInfo": {"username": "u", "groups": ["g"]},
    "dryRun": False,
    "options": {},
}
SEEDS = [
    json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**REQUEST, "object": one, "oldObject": one}}).encode()
    for one in (POD, SLICE, EVICTION, None)
]  # fmt: skip
WORDS = (
    "apiVersion", "kind", "request", *REQUEST, "object", "oldObject", *POD, *SLICE, *EVICTION, "admission.k8s.io/v1", "AdmissionReview", "CREATE", "UPDATE", "DELETE", "CONNECT",
    "conditions", "ready", "hints", "forZones", "addresses", "labels", "annotations", "ownerReferences", "deletionTimestamp", "u v\nw", "dryRun",
)  # fmt: skip
DECODERS = tuple(map(admission_review.decoder_for, (Pod, EndpointSlice, Eviction, dict)))


def check(data: bytes) -> None:
    for decoder in DECODERS:
        try:
            review = admission_review.read(data, decoder)
        except ReviewError as error:
            assert str(error)
            continue
        answered = json.loads(admission_review.answer(review.uid, AdmissionVerdict.deny(review.name or "no", code=429)))
        assert answered["response"]["uid"] == review.uid
