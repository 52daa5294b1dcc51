"""The watcher that says whether a budget was ever broken sees all there was to see, or the test that asks it fails."""

from dataclasses import replace

import pytest

from support.disruption.cluster import ZONES, Bed
from support.disruption.processes import LateApi
from support.disruption.violations import watching
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden
from zonewise.objects import PODS

pytestmark = pytest.mark.xdist_group("disruption")

ALL_OF_THEM = dict.fromkeys(ZONES, 1)


@pytest.fixture
async def served(bed: Bed) -> Bed:
    await bed.replica_set("web", 3)
    await bed.until_ready("web", 3)
    return bed


async def take_one(bed: Bed) -> None:
    (pod,) = await bed.in_zone("web", "zone-a")
    await bed.client.delete(PODS, pod, bed.namespace, grace_seconds=0)


async def test_what_it_hears_late_is_waited_for(served: Bed) -> None:
    async with LateApi(served.plane, 0) as late, Client(kubeconfig.load(late.kubeconfig(served.folder))) as client:
        async with watching(replace(served, client=client), "web", ALL_OF_THEM) as watcher:
            late.lag_seconds = 2.0
            await take_one(served)
            assert not watcher.violations
        assert watcher.violations


async def test_what_ends_its_watch_is_raised(served: Bed) -> None:
    """One who may list and not watch."""
    name = f"{served.namespace}-lister"
    await served.kubectl("create", "clusterrole", name, "--verb=list", "--resource=pods,nodes")
    await served.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={name}")
    access = replace(kubeconfig.load(served.plane.kubeconfig), impersonation=(("Impersonate-User", name),))
    async with Client(access) as client:
        with pytest.raises(Forbidden):
            async with watching(replace(served, client=client), "web", ALL_OF_THEM):
                await take_one(served)
    await served.kubectl("delete", "clusterrole,clusterrolebinding", name)
