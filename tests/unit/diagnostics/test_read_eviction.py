"""Reads of explain eviction: the owner of the pod, the leader, and whether its namespace is guarded."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from zonewise.api.names import DISRUPTION_CONFIGURATION, DISRUPTION_LEASE
from zonewise.diagnostics.decide.explain.eviction import EvictionReport
from zonewise.diagnostics.read.eviction import LEASE_NAMESPACES, explain_eviction
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.disruption.webhook.registration import eviction_configuration
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import LEASES, NAMESPACES, PODS, Key, Resource
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS
from zonewise.objects.apps import REPLICA_SETS

Objects = Mapping[tuple[Resource[Any], str], Mapping[str, Any] | type[Exception]]

NOW = datetime(2026, 11, 16, 6, tzinfo=UTC)
REGISTERED: Objects = {
    (MUTATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION): eviction_configuration({"url": "https://a"}, "guards"),
}
BY_CONTROLLER = {"apiVersion": "v1", "controller": True}


class FakeClient:
    """Objects by kind and name; an exception class instead of an object is raised."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def get(self, resource: Resource[Any], name: str, namespace: str = "") -> Any:
        item = self._objects.get((resource, str(Key(namespace, name))), self._objects.get((resource, name), NotFound))
        if isinstance(item, type):
            raise item("not for you")
        return msgspec.convert(item, resource.view)

    async def list(self, *_: Any, **_selection: Any) -> Any:
        return SimpleNamespace(items=())


async def explained(objects: Objects, namespace: str = "shop") -> EvictionReport:
    owner = BY_CONTROLLER | {"kind": "ReplicaSet", "name": "web-1", "uid": "rs"}
    pod = {"metadata": {"name": "web", "namespace": namespace, "uid": "pod", "ownerReferences": [owner]}}
    client: Any = FakeClient({(PODS, "web"): pod, (NAMESPACES, namespace): {}} | dict(objects))
    return await explain_eviction(ClusterReader(client), Key(namespace, "web"), LEASE_NAMESPACES, NOW)


def lease(namespace: str, age_seconds: float, holder: str = "leader") -> Objects:
    renewed = (NOW - timedelta(seconds=age_seconds)).isoformat()
    return {(LEASES, f"{namespace}/{DISRUPTION_LEASE}"): {"spec": {"holderIdentity": holder, "renewTime": renewed}}}


@pytest.mark.parametrize(
    ("above", "owner"), [("Deployment", "Deployment web"), ("Rollout", "ReplicaSet web-1"), (None, "ReplicaSet web-1")]
)
async def test_the_owner_is_a_deployment_or_the_replica_set(above: str | None, owner: str) -> None:
    owners = [BY_CONTROLLER | {"kind": above, "name": "web", "uid": "above"}] if above else []
    assert (await explained({(REPLICA_SETS, "web-1"): {"metadata": {"ownerReferences": owners}}})).owner == owner


@pytest.mark.parametrize(
    ("leases", "used", "silent"),
    [
        pytest.param(lease("kube-system", 900) | lease("zonewise-system", 2), "zonewise-system", False, id="moved"),
        pytest.param(lease("kube-system", 2) | lease("zonewise-system", 900), "kube-system", False, id="moved back"),
        pytest.param(
            lease("kube-system", 1, holder="") | lease("zonewise-system", 2), "zonewise-system", False, id="released"
        ),
        pytest.param(lease("kube-system", 900) | lease("zonewise-system", 800), "zonewise-system", True, id="both old"),
        pytest.param(
            lease("kube-system", 900) | {(LEASES, f"zonewise-system/{DISRUPTION_LEASE}"): Forbidden},
            "zonewise-system",
            False,
            id="the forbidden one may be in use",
        ),
        pytest.param(
            lease("kube-system", 2) | {(LEASES, f"zonewise-system/{DISRUPTION_LEASE}"): Forbidden},
            "kube-system",
            False,
            id="the forbidden one is not in use",
        ),
        pytest.param({}, f"kube-system/{DISRUPTION_LEASE} or zonewise-system", True, id="none"),
    ],
)
async def test_the_lease_renewed_last_is_in_use(leases: Objects, used: str, silent: bool) -> None:
    leader = (await explained(leases)).leader
    assert leader.lease == f"{used}/{DISRUPTION_LEASE}"
    assert bool(leader.trouble) is silent


UNGUARDED = {"metadata": {"labels": {"zonewise.dev/disruption": "unguarded"}}}
FORBIDDEN: Objects = {(MUTATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION): Forbidden}


@pytest.mark.parametrize(
    ("objects", "namespace", "guarded"),
    [
        pytest.param({}, "shop", False, id="nothing registered"),
        pytest.param(REGISTERED, "shop", True, id="registered"),
        pytest.param(REGISTERED, "kube-system", False, id="a system namespace"),
        pytest.param(REGISTERED, "guards", False, id="the webhook's namespace"),
        pytest.param(REGISTERED, "zonewise-system", True, id="the default namespace of the webhook"),
        pytest.param({**REGISTERED, (NAMESPACES, "shop"): UNGUARDED}, "shop", False, id="opted out by label"),
        pytest.param(
            {**REGISTERED, (NAMESPACES, "kube-system"): Forbidden},
            "kube-system",
            False,
            id="forbidden, excluded by name",
        ),
        pytest.param(FORBIDDEN, "shop", True, id="forbidden, assumed guarded"),
    ],
)
async def test_a_namespace_is_guarded_if_the_webhook_selects_it(
    objects: Objects, namespace: str, guarded: bool
) -> None:
    assert (await explained(objects, namespace)).guarded is guarded
