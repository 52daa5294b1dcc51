"""Every verb against a real API server."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from support.waiting import eventually
from zonewise.kube.client.client import Client, EventType, Propagation
from zonewise.kube.wire.errors import AlreadyExists, ApiError, BadRequest, Conflict, Invalid, NotFound
from zonewise.kube.wire.patch import Apply, JsonPatch, MergePatch, Patch, StrategicPatch, pointer
from zonewise.objects import CONFIG_MAPS, NAMESPACES, NODES, PODS, SERVICES, ConfigMap

POD = {
    "metadata": {"name": "p", "labels": {"app": "it"}},
    "spec": {
        "schedulerName": "nobody",
        "terminationGracePeriodSeconds": 7,
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}],
    },
}


def config_map(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"a": "1"}, **rest}


async def test_version(client: Client) -> None:
    assert (await client.version()).startswith("v1.")


async def test_create_get_and_delete(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAPS, config_map("x"), namespace)
    assert (created.metadata.name, created.metadata.namespace, created.data) == ("x", namespace, {"a": "1"})
    assert await client.get(CONFIG_MAPS, "x", namespace) == created
    assert await client.get(CONFIG_MAPS, "x", namespace, resource_version="0") == created
    await client.delete(CONFIG_MAPS, "x", namespace)
    with pytest.raises(NotFound, match=f"^not found: get of configmaps {namespace}/x: "):
        await client.get(CONFIG_MAPS, "x", namespace)
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAPS, "x", namespace)


async def test_namespace_is_taken_from_the_body(client: Client, namespace: str) -> None:
    body = {"metadata": {"generateName": "x-", "namespace": namespace}}
    first, second = [await client.create(CONFIG_MAPS, body) for _ in range(2)]
    assert first.metadata.namespace == second.metadata.namespace == namespace
    assert first.metadata.name != second.metadata.name


async def test_cluster_scoped_object_is_read(client: Client, namespace: str) -> None:
    assert (await client.get(NAMESPACES, namespace)).metadata.name == namespace


async def test_list_filters_by_labels_and_fields(client: Client, namespace: str) -> None:
    for name, labels in (("a", {"tier": "1"}), ("b", {"tier": "2"}), ("c", {})):
        await client.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}}, namespace)

    async def names(**selection: str) -> list[str]:
        listing = await client.list(CONFIG_MAPS, namespace, **selection)
        return sorted(item.metadata.name for item in listing.items if item.metadata.name != "kube-root-ca.crt")

    assert await names() == ["a", "b", "c"]
    assert await names(selector="tier in (1, 2)") == ["a", "b"]
    assert await names(selector="!tier") == ["c"]
    assert await names(fields="metadata.name=b") == ["b"]
    everywhere = await client.list(CONFIG_MAPS, selector="tier", fields=f"metadata.namespace={namespace}")
    assert sorted(item.metadata.name for item in everywhere.items) == ["a", "b"]


@pytest.mark.parametrize("page_size", [1, 3, 7, 500, 0])
async def test_list_follows_all_pages(client: Client, namespace: str, page_size: int) -> None:
    names = {f"n{number}" for number in range(7)}
    await asyncio.gather(*(client.create(CONFIG_MAPS, config_map(name), namespace) for name in names))
    listing = await client.list(CONFIG_MAPS, namespace, fields="metadata.name!=kube-root-ca.crt", page_size=page_size)
    assert {item.metadata.name for item in listing.items} == names
    assert len(listing.items) == 7
    again = await client.list(CONFIG_MAPS, namespace, resource_version=listing.resource_version, page_size=page_size)
    assert int(again.resource_version) >= int(listing.resource_version)


async def test_pages_share_one_snapshot(client: Client, namespace: str) -> None:
    for number in range(3):
        await client.create(
            SERVICES, {"metadata": {"name": f"s{number}"}, "spec": {"ports": [{"port": 80}]}}, namespace
        )
    sizes, versions = [], set()
    async with aclosing(client.pages(SERVICES, namespace, page_size=2)) as pages:
        async for page in pages:
            sizes.append((len(page.items), page.remaining))
            versions.add(page.resource_version)
            await client.delete_collection(SERVICES, namespace)
    assert sizes == [(2, 1), (1, None)]
    assert len(versions) == 1
    assert (await client.list(SERVICES, namespace)).items == []


async def test_delete_collection_filters_by_selector(client: Client, namespace: str) -> None:
    for name in ("a", "b"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"name": name}}}, namespace)
    await client.delete_collection(CONFIG_MAPS, namespace, selector="name=a", dry_run=True)
    await client.get(CONFIG_MAPS, "a", namespace)
    await client.delete_collection(CONFIG_MAPS, namespace, selector="name=a", propagation=Propagation.BACKGROUND)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a", namespace)
    await client.get(CONFIG_MAPS, "b", namespace)


@pytest.mark.parametrize("mismatch", [{"uid": "another"}, {"resource_version": "1"}])
async def test_delete_precondition_mismatch_conflicts(client: Client, namespace: str, mismatch: dict[str, str]) -> None:
    created = await client.create(CONFIG_MAPS, config_map("x"), namespace)
    right = {"uid": created.metadata.uid, "resource_version": created.metadata.resource_version}
    with pytest.raises(Conflict, match=r"(?i)precondition"):
        await client.delete(CONFIG_MAPS, "x", namespace, **{**right, **mismatch})
    await client.delete(CONFIG_MAPS, "x", namespace, **right)


async def test_orphan_propagation_keeps_the_child(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIG_MAPS, config_map("owner"), namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    child = {"metadata": {"name": "child", "ownerReferences": [reference]}}
    await client.create(CONFIG_MAPS, child, namespace)
    await client.delete(CONFIG_MAPS, "owner", namespace, propagation=Propagation.ORPHAN)

    async def is_free() -> bool:
        return not (await client.get(CONFIG_MAPS, "child", namespace)).metadata.owner_references

    await eventually(is_free)


async def test_delete_with_zero_grace_waits_for_finalizers(client: Client, namespace: str) -> None:
    await client.create(PODS, {**POD, "metadata": {"name": "p", "finalizers": ["zonewise.dev/hold"]}}, namespace)
    await client.delete(PODS, "p", namespace, grace_seconds=0)
    assert (await client.get(PODS, "p", namespace)).metadata.deletion_timestamp
    await client.patch(PODS, "p", JsonPatch([{"op": "remove", "path": "/metadata/finalizers"}]), namespace)
    with pytest.raises(NotFound):
        await client.get(PODS, "p", namespace)


# A patch keeps every field it does not name, decoded by a view or not.

PATCHES: dict[str, Patch] = {
    "JSON": JsonPatch([{"op": "add", "path": pointer("metadata", "labels", "zonewise.dev/new"), "value": "1"}]),
    "merge": MergePatch({"metadata": {"labels": {"zonewise.dev/new": "1"}}}),
    "strategic": StrategicPatch({"metadata": {"labels": {"zonewise.dev/new": "1"}}}),
    "apply": Apply({"metadata": {"labels": {"zonewise.dev/new": "1"}}}),
}


@pytest.mark.parametrize("kind", PATCHES)
async def test_patch_keeps_every_field_it_does_not_name(client: Client, namespace: str, kind: str) -> None:
    before = await client.create(PODS.whole(), POD, namespace)
    patched = await client.patch(PODS, "p", PATCHES[kind], namespace)
    after = await client.get(PODS.whole(), "p", namespace)

    assert patched.metadata.labels == {"app": "it", "zonewise.dev/new": "1"}
    assert after["metadata"]["labels"].pop("zonewise.dev/new") == "1"
    for changed in ("resourceVersion", "managedFields", "generation"):
        before["metadata"].pop(changed, None)
        after["metadata"].pop(changed, None)
    assert after == before


async def test_update_of_the_full_object_keeps_every_field(client: Client, namespace: str) -> None:
    await client.create(PODS, POD, namespace)
    document = await client.get(PODS.whole(), "p", namespace)
    document["metadata"]["labels"]["new"] = "1"
    updated = await client.update(PODS.whole(), document)
    assert updated["metadata"]["labels"] == {"app": "it", "new": "1"}
    assert updated["spec"] == document["spec"]


async def test_update_of_a_stale_object_conflicts(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("x"), namespace)
    document = await client.get(CONFIG_MAPS.whole(), "x", namespace)
    await client.patch(CONFIG_MAPS, "x", MergePatch({"data": {"b": "2"}}), namespace)
    with pytest.raises(Conflict, match=f"^conflict: update of configmaps {namespace}/x: .*has been modified"):
        await client.update(CONFIG_MAPS, document)


async def test_failed_test_operation_stops_a_json_patch(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("x"), namespace)
    operations = [
        {"op": "test", "path": "/data/a", "value": "other"},
        {"op": "replace", "path": "/data/a", "value": "2"},
    ]
    with pytest.raises(Invalid):
        await client.patch(CONFIG_MAPS, "x", JsonPatch(operations), namespace)
    assert (await client.get(CONFIG_MAPS, "x", namespace)).data == {"a": "1"}


async def test_merge_patch_replaces_lists_and_strategic_patch_merges(client: Client, namespace: str) -> None:
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 80}]}}
    added = {"spec": {"ports": [{"name": "b", "port": 81}]}}
    await client.create(SERVICES, service, namespace)
    patched = await client.patch(SERVICES, "s", StrategicPatch(added), namespace)
    assert {port.name for port in patched.spec.ports} == {"a", "b"}
    patched = await client.patch(SERVICES, "s", MergePatch(added), namespace)
    assert {port.name for port in patched.spec.ports} == {"b"}


async def test_server_side_apply_owns_its_fields(client: Client, namespace: str) -> None:
    def apply(data: dict[str, str], **options: Any) -> Any:
        return client.patch(CONFIG_MAPS, "x", Apply({"data": data}, **options), namespace)

    assert (await apply({"a": "1", "b": "2"})).data == {"a": "1", "b": "2"}
    assert (await apply({"c": "3"}, manager="other")).data == {"a": "1", "b": "2", "c": "3"}
    assert (await apply({"a": "1"})).data == {"a": "1", "c": "3"}
    with pytest.raises(Conflict) as raised:
        await apply({"a": "9"}, manager="other")
    assert [(cause.reason, cause.field) for cause in raised.value.causes] == [("FieldManagerConflict", ".data.a")]
    assert (await apply({"a": "9"}, manager="other", force=True)).data == {"a": "9"}

    document = await client.get(CONFIG_MAPS.whole(), "x", namespace)
    assert {entry["manager"] for entry in document["metadata"]["managedFields"]} == {"other"}


async def test_status_subresource_changes_only_the_status(client: Client, namespace: str) -> None:
    await client.create(PODS, POD, namespace)
    change = MergePatch({"spec": {"activeDeadlineSeconds": 5}, "status": {"phase": "Running"}})
    patched = await client.patch(PODS.whole(), "p", change, namespace, subresource="status")
    assert patched["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in patched["spec"]
    unchanged = await client.patch(PODS, "p", MergePatch({"status": {"phase": "Failed"}}), namespace)
    assert unchanged.status.phase == "Running"

    document = await client.get(PODS.whole(), "p", namespace)
    document["status"]["podIP"] = "10.0.0.7"
    document["status"]["podIPs"] = [{"ip": "10.0.0.7"}]
    assert (await client.update(PODS, document, subresource="status")).status.pod_ip == "10.0.0.7"


async def test_dry_run_changes_nothing(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAPS, config_map("x"), namespace, dry_run=True)
    assert created.metadata.name == "x"
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "x", namespace)

    await client.create(CONFIG_MAPS, config_map("x"), namespace)
    document = await client.get(CONFIG_MAPS.whole(), "x", namespace)
    patched = await client.patch(CONFIG_MAPS, "x", MergePatch({"data": {"b": "2"}}), namespace, dry_run=True)
    updated = await client.update(CONFIG_MAPS, {**document, "data": {}}, dry_run=True)
    await client.delete(CONFIG_MAPS, "x", namespace, dry_run=True)
    assert (patched.data, updated.data) == ({"a": "1", "b": "2"}, {})
    assert await client.get(CONFIG_MAPS.whole(), "x", namespace) == document


async def test_writes_carry_the_field_manager(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAPS.whole(), config_map("x"), namespace)
    assert [entry["manager"] for entry in created["metadata"]["managedFields"]] == ["zonewise"]


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        pytest.param(config_map("x"), AlreadyExists, "already exists", id="already exists"),
        pytest.param(config_map("X_"), Invalid, "lowercase RFC 1123", id="invalid name"),
        pytest.param({"metadata": {"name": "y"}, "data": "text"}, BadRequest, "cannot", id="not the kind's shape"),
        pytest.param(
            {"metadata": {"name": "y", "namespace": "other"}}, BadRequest, "namespace", id="another namespace"
        ),
    ],
)
async def test_bad_create_raises_the_matching_error(
    client: Client, namespace: str, body: dict[str, Any], kind: type[ApiError], says: str
) -> None:
    await client.create(CONFIG_MAPS, config_map("x"), namespace)
    with pytest.raises(kind, match=says):
        await client.create(CONFIG_MAPS, body, namespace)


async def test_invalid_error_names_the_fields(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as raised:
        await client.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "Bad_"}]}}, namespace)
    assert "spec.containers[0].name" in {cause.field for cause in raised.value.causes}


async def test_names_and_selectors_are_escaped(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a/b?c#d", namespace)
    assert await client.list(CONFIG_MAPS, namespace, selector="a notin (b,c)", fields="metadata.name=x&y") is not None


# Watching.


async def test_watch_yields_each_change(client: Client, namespace: str) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    await client.create(CONFIG_MAPS, config_map("x"), namespace)
    await client.patch(CONFIG_MAPS, "x", MergePatch({"data": {"b": "2"}}), namespace)
    await client.delete(CONFIG_MAPS, "x", namespace)
    received: list[tuple[EventType, ConfigMap]] = []
    watch = client.watch(CONFIG_MAPS, namespace, fields="metadata.name=x", resource_version=start)
    async with aclosing(watch) as events:
        async for event in events:
            received.append((event.type, event.object))
            if event.type is EventType.DELETED:
                break
    assert [kind for kind, _ in received] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
    assert [config_map.data for _, config_map in received] == [{"a": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}]


async def test_watch_with_initial_events_begins_with_existing_objects(client: Client, namespace: str) -> None:
    for name in ("a", "b"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"mine": ""}}}, namespace)
    names = []
    watch = client.watch(CONFIG_MAPS, namespace, selector="mine", resource_version="", initial_events=True)
    async with aclosing(watch) as events:
        async for event in events:
            if event.end_of_initial_events:
                assert event.type is EventType.BOOKMARK
                assert int(event.object.metadata.resource_version) > 0
                break
            names.append(event.object.metadata.name)
    assert names == ["a", "b"]


async def test_server_ends_a_watch_at_its_timeout(client: Client, namespace: str) -> None:
    start = (await client.list(SERVICES, namespace)).resource_version
    events = [event async for event in client.watch(SERVICES, namespace, resource_version=start, timeout_seconds=3)]
    assert {event.type for event in events} <= {EventType.BOOKMARK}


async def test_watch_filters_by_field(client: Client, namespace: str) -> None:
    name = f"node-{namespace}"
    start = (await client.list(NODES)).resource_version
    await client.create(NODES, {"metadata": {"name": name}})
    watch = client.watch(NODES, fields=f"metadata.name={name}", resource_version=start)
    async with aclosing(watch) as events:
        event = await anext(events)
    assert (event.type, event.object.metadata.name) == (EventType.ADDED, name)
    await client.delete(NODES, name)
