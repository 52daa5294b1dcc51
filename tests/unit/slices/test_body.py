"""The bodies and patches that plans are written with."""

import json
from typing import Any

import msgspec
import pytest

from unit.slices.build import HTTP, SliceStore, pod, pods_in, service, zones
from zonewise.objects import EndpointSlice, Metadata, OwnerReference
from zonewise.slices.decide.body import body_of, is_owned_by, name_prefix, patch_of
from zonewise.slices.decide.plan import plan_slices

WEB = service(labels={"team": "shop"}, ports=(HTTP,))


def test_body_of_a_new_slice() -> None:
    (draft,) = plan_slices(WEB, [pod("p", "10.0.0.1", ready=False)], zones("a"), [], trigger_time="now").creates
    assert json.loads(json.dumps(body_of(draft))) == {
        "metadata": {
            "generateName": "web-",
            "namespace": "shop",
            "labels": {
                "team": "shop",
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "now"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": "web",
                    "uid": "uid-web",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": False, "serving": False, "terminating": False},
                "nodeName": "a1",
                "zone": "a",
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "uid-p"},
            }
        ],
    }


def test_body_of_a_placeholder_has_empty_lists() -> None:
    (draft,) = plan_slices(WEB, [], zones("a"), []).creates
    body = json.loads(json.dumps(body_of(draft)))
    assert (body["ports"], body["endpoints"]) == ([], [])


def patched(before: SliceStore, change: Any) -> dict[str, Any]:
    (update,) = before.plan(*change).updates
    return patch_of(update.existing, update.body)


def test_patch_has_only_the_differences() -> None:
    store = SliceStore(zones("a"))
    pods = pods_in({"a": 2})
    store.sync(WEB, pods, trigger_time="then")
    (endpoint_slice,) = store.slices
    version = endpoint_slice.metadata.resource_version
    relabelled = service(labels={"tier": "front"})
    assert patched(store, (relabelled, pods)) == {
        "metadata": {
            "resourceVersion": version,
            "labels": {"team": None, "tier": "front"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": None},
        }
    }
    fewer = patched(store, (WEB, pods[:1]))
    assert set(fewer) == {"metadata", "endpoints"}
    assert len(fewer["endpoints"]) == 1


def test_annotations_of_other_writers_are_kept() -> None:
    store = SliceStore(zones("a"))
    store.sync(WEB, pods_in({"a": 1}), trigger_time="then")
    (endpoint_slice,) = store.slices
    annotated = {**endpoint_slice.metadata.annotations, "example.com/mine": "yes"}
    store.put(
        msgspec.structs.replace(
            endpoint_slice, metadata=msgspec.structs.replace(endpoint_slice.metadata, annotations=annotated)
        )
    )
    store.sync(WEB, pods_in({"a": 2}))
    assert store.slices[0].metadata.annotations == {"example.com/mine": "yes"}


OWNERS = {
    "the Service": (OwnerReference(api_version="v1", kind="Service", name="web", uid="uid-web"), True),
    "an earlier Service of that name": (OwnerReference(api_version="v1", kind="Service", name="web", uid="old"), False),
    "another kind": (OwnerReference(api_version="v1", kind="ConfigMap", name="web", uid="uid-web"), False),
    "another group": (OwnerReference(api_version="example.com/v1", kind="Service", uid="uid-web"), False),
}


@pytest.mark.parametrize(("owner", "expected"), OWNERS.values(), ids=OWNERS)
def test_ownership(owner: OwnerReference, expected: bool) -> None:
    endpoint_slice = EndpointSlice(
        metadata=Metadata(name="web-1", owner_references=(OwnerReference(uid="other"), owner))
    )
    assert is_owned_by(endpoint_slice, WEB) is expected


@pytest.mark.parametrize(("length", "dash"), [(1, "-"), (252, "-"), (253, "")])
def test_name_prefix_has_a_dash_if_there_is_room(length: int, dash: str) -> None:
    assert name_prefix("w" * length) == "w" * length + dash
