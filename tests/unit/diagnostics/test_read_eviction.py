"""What `explain eviction` reads of a cluster: whose pod it is, who leads, and whether anybody asks about its namespace."""

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
from zonewise.disruption.webhook.registration import DELETES, EVICTIONS, webhook_configuration
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import LEASES, NAMESPACES, PODS, Key, Resource
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS
from zonewise.objects.apps import REPLICA_SETS

Objects = Mapping[tuple[Resource[Any], str], Mapping[str, Any] | type[Exception]]

NOW = datetime(2026, 11, 16, 6, tzinfo=UTC)
SERVED = {EVICTIONS: {"url": "https://a"}, DELETES: {"url": "https://a"}}
REGISTERED: Objects = {
    (VALIDATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION): webhook_configuration(SERVED, "guards"),
}
BY_CONTROLLER = {"apiVersion": "v1", "controller": True}


class PaperClient:
    """What is there, by kind and name; an exception for what may not be read."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def get(self, resource: Resource[Any], name: str, namespace: str = "") -> Any:
        found = self._objects.get((resource, str(Key(namespace, name))), self._objects.get((resource, name), NotFound))
        if isinstance(found, type):
            raise found("not for you")
        return msgspec.convert(found, resource.view)

    async def list(self, *_: Any, **_selection: Any) -> Any:
        return SimpleNamespace(items=())


async def told(objects: Objects, namespace: str = "shop") -> EvictionReport:
    owner = BY_CONTROLLER | {"kind": "ReplicaSet", "name": "web-1", "uid": "rs"}
    pod = {"metadata": {"name": "web", "namespace": namespace, "uid": "pod", "ownerReferences": [owner]}}
    client: Any = PaperClient({(PODS, "web"): pod, (NAMESPACES, namespace): {}} | dict(objects))
    return await explain_eviction(ClusterReader(client), Key(namespace, "web"), LEASE_NAMESPACES, NOW)


def lease(namespace: str, age_seconds: float, holder: str = "leader") -> Objects:
    renewed = (NOW - timedelta(seconds=age_seconds)).isoformat()
    return {(LEASES, f"{namespace}/{DISRUPTION_LEASE}"): {"spec": {"holderIdentity": holder, "renewTime": renewed}}}


@pytest.mark.parametrize(
    ("above", "owner"), [("Deployment", "Deployment web"), ("Rollout", "ReplicaSet web-1"), (None, "ReplicaSet web-1")]
)
async def test_only_a_deployment_stands_above_a_replica_set_as_for_the_guard(above: str | None, owner: str) -> None:
    owners = [BY_CONTROLLER | {"kind": above, "name": "web", "uid": "above"}] if above else []
    assert (await told({(REPLICA_SETS, "web-1"): {"metadata": {"ownerReferences": owners}}})).owner == owner


@pytest.mark.parametrize(
    ("leases", "used", "silent"),
    [
        pytest.param(lease("kube-system", 900) | lease("zonewise-system", 2), "zonewise-system", False, id="moved"),
        pytest.param(lease("kube-system", 2) | lease("zonewise-system", 900), "kube-system", False, id="moved back"),
        pytest.param(
            lease("kube-system", 1, holder="") | lease("zonewise-system", 2), "zonewise-system", False, id="given up"
        ),
        pytest.param(lease("kube-system", 900) | lease("zonewise-system", 800), "zonewise-system", True, id="both old"),
        pytest.param(
            lease("kube-system", 900) | {(LEASES, f"zonewise-system/{DISRUPTION_LEASE}"): Forbidden},
            "zonewise-system",
            False,
            id="the other may be the one",
        ),
        pytest.param(
            lease("kube-system", 2) | {(LEASES, f"zonewise-system/{DISRUPTION_LEASE}"): Forbidden},
            "kube-system",
            False,
            id="the other can't be the one",
        ),
        pytest.param({}, f"kube-system/{DISRUPTION_LEASE} or zonewise-system", True, id="none"),
    ],
)
async def test_the_lease_in_use_is_the_one_renewed_last(leases: Objects, used: str, silent: bool) -> None:
    leader = (await told(leases)).leader
    assert leader.lease == f"{used}/{DISRUPTION_LEASE}"
    assert bool(leader.trouble) is silent


UNGUARDED = {"metadata": {"labels": {"zonewise.dev/disruption": "unguarded"}}}
MAY_NOT_LOOK: Objects = {(VALIDATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION): Forbidden}


@pytest.mark.parametrize(
    ("objects", "namespace", "guarded"),
    [
        pytest.param({}, "shop", False, id="nothing registered"),
        pytest.param(REGISTERED, "shop", True, id="registered"),
        pytest.param(REGISTERED, "kube-system", False, id="the system's own"),
        pytest.param(REGISTERED, "guards", False, id="our own"),
        pytest.param(REGISTERED, "zonewise-system", True, id="what would be ours by default"),
        pytest.param({**REGISTERED, (NAMESPACES, "shop"): UNGUARDED}, "shop", False, id="taken out"),
        pytest.param({**REGISTERED, (NAMESPACES, "kube-system"): Forbidden}, "kube-system", False, id="by its name"),
        pytest.param(MAY_NOT_LOOK, "shop", True, id="taken for granted"),
    ],
)
async def test_a_namespace_is_guarded_where_the_registered_webhook_selects_it(
    objects: Objects, namespace: str, guarded: bool
) -> None:
    assert (await told(objects, namespace)).guarded is guarded
