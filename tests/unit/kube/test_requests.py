"""HTTP request of each verb."""

import json
from typing import Any

import pytest

from zonewise.kube.wire import requests
from zonewise.kube.wire.patch import Apply, JsonPatch, MergePatch, Patch, StrategicPatch, pointer
from zonewise.kube.wire.requests import ApiRequest, Propagation, Selection
from zonewise.objects import CONFIG_MAPS, LEASES, NODES, PODS, Metadata, Pod

APPLIED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {}}
OPTIONS = {"fieldManager": "zonewise"}


def body(call: ApiRequest) -> Any:
    assert call.body is not None
    return json.loads(call.body)


def test_get_request() -> None:
    call = requests.get(LEASES, "x", "kube-system", None)
    assert (call.method, call.path) == ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x")
    assert call.query == {}
    assert call.is_read
    assert call.action == "get of leases.coordination.k8s.io kube-system/x"
    assert requests.get(NODES, "n", "", "0").query == {"resourceVersion": "0"}
    assert requests.get(NODES, "n", "", "0").action == "get of nodes n"


@pytest.mark.parametrize(
    ("selection", "options", "query"),
    [
        pytest.param(Selection(), {"page_size": 500}, {"limit": "500"}, id="first page"),
        pytest.param(Selection(), {"page_size": 0}, {}, id="all at once"),
        pytest.param(
            Selection(labels="a=b", fields="spec.nodeName=n"),
            {"page_size": 1},
            {"limit": "1", "labelSelector": "a=b", "fieldSelector": "spec.nodeName=n"},
            id="selected",
        ),
        pytest.param(
            Selection(labels="a=b"),
            {"page_size": 5, "resource_version": "7", "after": "token"},
            {"limit": "5", "labelSelector": "a=b", "continue": "token"},
            id="next page",
        ),
        pytest.param(
            Selection(),
            {"page_size": 5, "resource_version": "7"},
            {"limit": "5", "resourceVersion": "7", "resourceVersionMatch": "NotOlderThan"},
            id="not older than",
        ),
        pytest.param(Selection(), {"page_size": 0, "resource_version": ""}, {"resourceVersion": ""}, id="latest"),
    ],
)
def test_list_query(selection: Selection, options: dict[str, Any], query: dict[str, str]) -> None:
    call = requests.list_page(PODS, selection, **{"resource_version": None, "after": "", **options})
    assert (call.method, call.path, call.query) == ("GET", "/api/v1/pods", query)


def test_list_action_names_its_namespace() -> None:
    call = requests.list_page(PODS, Selection("kube-system"), page_size=0, resource_version=None, after="")
    assert call.path == "/api/v1/namespaces/kube-system/pods"
    assert call.action == "list of pods in kube-system"


def test_watch_query() -> None:
    call = requests.watch(PODS, Selection(), resource_version="5", initial_events=False, timeout_seconds=60)
    assert call.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "60",
        "resourceVersion": "5",
    }
    streaming = requests.watch(PODS, Selection(), resource_version="", initial_events=True, timeout_seconds=60)
    assert streaming.query == {
        **call.query,
        "resourceVersion": "",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
    }


def test_create_adds_the_type() -> None:
    call = requests.create(LEASES, {"metadata": {"name": "x", "namespace": "a"}, "spec": {}}, "", OPTIONS)
    assert (call.method, call.path) == ("POST", "/apis/coordination.k8s.io/v1/namespaces/a/leases")
    assert body(call) == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "x", "namespace": "a"},
        "spec": {},
    }
    assert not call.is_read


@pytest.mark.parametrize(
    ("metadata", "namespace", "path", "action"),
    [
        ({"name": "x", "namespace": "a"}, "", "a", "create of configmaps a/x"),
        ({"name": "x"}, "b", "b", "create of configmaps b/x"),
        ({"name": "x", "namespace": "a"}, "b", "b", "create of configmaps b/x"),
        ({"generateName": "x-", "namespace": "a"}, "", "a", "create of configmaps a/x-"),
    ],
)
def test_namespace_is_the_argument_or_the_bodys(
    metadata: dict[str, str], namespace: str, path: str, action: str
) -> None:
    call = requests.create(CONFIG_MAPS, {"metadata": metadata}, namespace, OPTIONS)
    assert (call.path, call.action) == (f"/api/v1/namespaces/{path}/configmaps", action)


def test_update_goes_to_the_object_or_its_subresource() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    assert requests.update(NODES, node, "", "", OPTIONS).path == "/api/v1/nodes/n"
    call = requests.update(NODES, node, "", "status", OPTIONS)
    assert (call.method, call.path, call.resource) == ("PUT", "/api/v1/nodes/n/status", "nodes/status")
    assert call.action == "update of nodes/status n"


@pytest.mark.parametrize(
    "views",
    [
        pytest.param(Pod(), id="a view"),
        pytest.param({"metadata": Metadata(name="x")}, id="a view inside"),
        pytest.param({"metadata": {"name": "x"}, "items": [[Pod()]]}, id="a view deep inside"),
    ],
)
def test_update_refuses_views(views: Any) -> None:
    with pytest.raises(TypeError, match=r"Resource.whole\(\)"):
        requests.update(PODS, views, "a", "", OPTIONS)


def test_non_mapping_bodies_are_refused() -> None:
    view: Any = Pod()
    with pytest.raises(TypeError, match="plain JSON, not Pod"):
        requests.create(PODS, view, "a", OPTIONS)
    with pytest.raises(TypeError, match="plain JSON, not Pod"):
        requests.patch(PODS, "x", MergePatch(view), "a", "", OPTIONS)


@pytest.mark.parametrize(
    ("change", "content_type", "sent", "query"),
    [
        (
            JsonPatch([{"op": "remove", "path": "/data/a"}]),
            "json-patch+json",
            [{"op": "remove", "path": "/data/a"}],
            {},
        ),
        (MergePatch({"data": None}), "merge-patch+json", {"data": None}, {}),
        (StrategicPatch({"data": {}}), "strategic-merge-patch+json", {"data": {}}, {}),
        (Apply({"data": {}}), "apply-patch+yaml", APPLIED, {}),
        (
            Apply({"data": {}}, manager="other", force=True),
            "apply-patch+yaml",
            APPLIED,
            {"fieldManager": "other", "force": "true"},
        ),
    ],
)
def test_patch_request(change: Patch, content_type: str, sent: Any, query: dict[str, str]) -> None:
    call = requests.patch(CONFIG_MAPS, "x", change, "a", "", OPTIONS)
    assert (call.method, call.path) == ("PATCH", "/api/v1/namespaces/a/configmaps/x")
    assert call.content_type == f"application/{content_type}"
    assert body(call) == sent
    assert call.query == {**OPTIONS, **query}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {}),
        ({"uid": "u"}, {"preconditions": {"uid": "u"}}),
        ({"uid": "u", "resource_version": "5"}, {"preconditions": {"uid": "u", "resourceVersion": "5"}}),
        ({"grace_seconds": 0}, {"gracePeriodSeconds": 0}),
        ({"propagation": Propagation.FOREGROUND}, {"propagationPolicy": "Foreground"}),
        ({"dry_run": True}, {"dryRun": ["All"]}),
    ],
)
def test_delete_options_body(given: dict[str, Any], sent: dict[str, Any]) -> None:
    call = requests.delete(PODS, "x", "a", requests.delete_options(**given))
    assert (call.method, call.path) == ("DELETE", "/api/v1/namespaces/a/pods/x")
    assert body(call) == {"apiVersion": "v1", "kind": "DeleteOptions", **sent}


def test_delete_collection_request() -> None:
    call = requests.delete_collection(PODS, Selection("a", "x=y"), requests.delete_options())
    assert (call.method, call.path, call.query) == ("DELETE", "/api/v1/namespaces/a/pods", {"labelSelector": "x=y"})


def test_eviction_is_never_retried_automatically() -> None:
    call = requests.evict("x", "a", requests.delete_options(uid="u"), dry_run=True)
    assert (call.path, call.query) == ("/api/v1/namespaces/a/pods/x/eviction", {"dryRun": "All"})
    assert not call.repeatable
    assert body(call)["deleteOptions"]["preconditions"] == {"uid": "u"}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: requests.get(PODS, "x", "", None), "get of pods x: a namespace is needed"),
        (lambda: requests.get(PODS, "", "a", None), "get of pods: a name is needed"),
        (
            lambda: requests.create(PODS, {"metadata": {"name": "x"}}, "", OPTIONS),
            "create of pods x: a namespace is needed",
        ),
        (lambda: requests.update(PODS, {}, "a", "", OPTIONS), "no metadata.name"),
    ],
)
def test_missing_fields_are_refused_before_sending(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_raw_call_is_named_by_its_path() -> None:
    assert ApiRequest(verb="get", method="GET", path="/version").action == "get of /version"


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("metadata", "annotations", "zonewise.dev/padding"), "/metadata/annotations/zonewise.dev~1padding"),
        (("a~b", 0, "-"), "/a~0b/0/-"),
        ((), ""),
        (("~1",), "/~01"),
    ],
)
def test_json_pointers_are_escaped(parts: tuple[str | int, ...], path: str) -> None:
    assert pointer(*parts) == path
