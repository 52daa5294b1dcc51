"""The violation watcher receives every event, or fails the test that uses it."""

from dataclasses import replace

import pytest

from support.disruption.cluster import ZONES, DisruptionNamespace
from support.disruption.processes import LateApi
from support.disruption.violations import watching
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden
from zonewise.objects import PODS

pytestmark = pytest.mark.xdist_group("disruption")

ALL_PODS = dict.fromkeys(ZONES, 1)


@pytest.fixture
async def web_ns(ns: DisruptionNamespace) -> DisruptionNamespace:
    await ns.replica_set("web", 3)
    await ns.until_ready("web", 3)
    return ns


async def delete_one(ns: DisruptionNamespace) -> None:
    (pod,) = await ns.in_zone("web", "zone-a")
    await ns.client.delete(PODS, pod, ns.namespace, grace_seconds=0)


async def test_watcher_waits_for_delayed_events(web_ns: DisruptionNamespace) -> None:
    async with LateApi(web_ns.plane, 0) as late, Client(kubeconfig.load(late.kubeconfig(web_ns.folder))) as client:
        async with watching(replace(web_ns, client=client), "web", ALL_PODS) as watcher:
            late.lag_seconds = 2.0
            await delete_one(web_ns)
            assert not watcher.violations
        assert watcher.violations


async def test_watcher_raises_the_error_that_ends_its_watch(web_ns: DisruptionNamespace) -> None:
    """A user who may list but not watch."""
    name = f"{web_ns.namespace}-lister"
    await web_ns.kubectl("create", "clusterrole", name, "--verb=list", "--resource=pods,nodes")
    await web_ns.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={name}")
    access = replace(kubeconfig.load(web_ns.plane.kubeconfig), impersonation=(("Impersonate-User", name),))
    async with Client(access) as client:
        with pytest.raises(Forbidden):
            async with watching(replace(web_ns, client=client), "web", ALL_PODS):
                await delete_one(web_ns)
    await web_ns.kubectl("delete", "clusterrole,clusterrolebinding", name)
