"""Leadership when the API server, its etcd or the network between fail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector
from zonewise.kube.decide.election import NotLeader, Timing
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import CONFIG_MAPS, LEASES

TIMING = Timing(lease_seconds=6, renew_deadline_seconds=4, retry_seconds=0.3)
PATIENT = Timing(lease_seconds=180, renew_deadline_seconds=120, retry_seconds=0.1)


class Worker:
    """A candidate whose work notes when it begins and ends, and whether it may write just then."""

    def __init__(self, client: Client, namespace: str, identity: str, timing: Timing) -> None:
        self.leadership = LeaderElector(client, "x", namespace, identity=identity, timing=timing)
        self.guarded = client.guarded(self.leadership)
        self.begun = 0
        self.ended = 0

    async def lead(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


@asynccontextmanager
async def working(client: Client, namespace: str, identity: str, timing: Timing = TIMING) -> AsyncIterator[Worker]:
    worker = Worker(client, namespace, identity, timing)
    task = asyncio.create_task(worker.leadership.run(worker.lead))
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.wait({task})


async def refused(worker: Worker) -> bool:
    try:
        await worker.guarded.create(CONFIG_MAPS, {"metadata": {"generateName": "w-"}}, "default", dry_run=True)
    except NotLeader:
        return True
    return False


@pytest.mark.parametrize("victim", [Program.APISERVER, Program.ETCD])
async def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(
    private_cluster: Callable[..., ControlPlane], victim: Program
) -> None:
    """The API server is killed and started again; etcd is paused, so that the API server answers but stores nothing."""
    plane = await asyncio.to_thread(private_cluster)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client, working(client, "default", "me") as worker:
        await eventually(lambda: worker.begun)
        plane.pause(Program.ETCD) if victim is Program.ETCD else plane.kill(Program.APISERVER)
        await eventually(lambda: worker.ended)
        assert await refused(worker)
        if victim is Program.ETCD:
            plane.resume(Program.ETCD)
        else:
            await asyncio.to_thread(plane.restart_apiserver)
        await eventually(lambda: worker.begun > worker.ended and worker.leadership.leads)
        lease = await client.get(LEASES, "x", "default")
        assert lease.spec.holder_identity == "me"


async def test_a_leader_cut_off_silently_stops_while_another_takes_over(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    """No reset, no FIN: the calls hang, and the leader must not wait for them longer than its lease allows."""
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as far, working(far, namespace, "far") as cut_off:
            await eventually(lambda: cut_off.begun)
            async with working(client, namespace, "near") as near:
                await eventually(lambda: near.leadership.holder == "far")
                proxy.go_silent()
                await eventually(lambda: near.begun)
                assert cut_off.ended == 1, "the old leader had stopped before the new one began"
                assert not cut_off.leadership.leads
                await proxy.heal()
                await eventually(lambda: cut_off.leadership.holder == "near")
                assert (near.begun, near.ended, cut_off.begun) == (1, 0, 1)


async def test_broken_connections_alone_cost_no_leadership(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    async def next_renewal(version: str) -> str | None:
        found = (await client.get(LEASES, "x", namespace)).metadata.resource_version
        return found if found != version else None

    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as shaky, working(shaky, namespace, "me", PATIENT) as worker:
            await eventually(lambda: worker.begun)
            version = ""
            for _ in range(10):
                version = await eventually(partial(next_renewal, version)) or ""
                proxy.reset()
            assert (worker.begun, worker.ended) == (1, 0)


async def test_a_leader_that_cannot_release_says_so_and_ends(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as far:
            with capture_logs() as lines:
                async with working(far, namespace, "me") as worker:
                    await eventually(lambda: worker.begun)
                    proxy.go_silent()
            assert lines[-1]["event"] == "lease not released, it will expire"
            assert worker.ended == 1
            assert not worker.leadership.leads
    assert (await client.get(LEASES, "x", namespace)).spec.holder_identity == "me"


async def test_a_former_leader_does_not_release_anothers_lease(client: Client, namespace: str) -> None:
    async with working(client, namespace, "me") as worker:
        await eventually(lambda: worker.begun)
        await client.patch(LEASES, "x", MergePatch({"spec": {"holderIdentity": "other"}}), namespace)
        await eventually(lambda: worker.ended)
    assert (await client.get(LEASES, "x", namespace)).spec.holder_identity == "other"
