"""Leader election under faults of API server, etcd and network."""

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
    """Candidate whose work counts its starts and ends, with a guarded client."""

    def __init__(self, client: Client, namespace: str, identity: str, timing: Timing) -> None:
        self.leadership = LeaderElector(client, "x", namespace, identity=identity, timing=timing)
        self.guarded = client.guarded(self.leadership)
        self.started = 0
        self.ended = 0

    async def lead(self) -> None:
        self.started += 1
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
async def test_leader_that_cannot_renew_stops_before_expiry(
    private_cluster: Callable[..., ControlPlane], victim: Program
) -> None:
    """Either the API server is killed and restarted, or etcd is paused, so that the API server stores nothing."""
    plane = await asyncio.to_thread(private_cluster)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client, working(client, "default", "me") as worker:
        await eventually(lambda: worker.started)
        plane.pause(Program.ETCD) if victim is Program.ETCD else plane.kill(Program.APISERVER)
        await eventually(lambda: worker.ended)
        assert await refused(worker)
        if victim is Program.ETCD:
            plane.resume(Program.ETCD)
        else:
            await asyncio.to_thread(plane.restart_apiserver)
        await eventually(lambda: worker.started > worker.ended and worker.leadership.leads)
        lease = await client.get(LEASES, "x", "default")
        assert lease.spec.holder_identity == "me"


async def test_silently_partitioned_leader_stops_before_takeover(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    """No reset, no FIN: calls hang, and the leader must stop before its lease expires."""
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as far_client, working(far_client, namespace, "far") as cut_off:
            await eventually(lambda: cut_off.started)
            async with working(client, namespace, "near") as near:
                await eventually(lambda: near.leadership.holder == "far")
                proxy.go_silent()
                await eventually(lambda: near.started)
                assert cut_off.ended == 1, "the old leader stopped before the new one started"
                assert not cut_off.leadership.leads
                await proxy.heal()
                await eventually(lambda: cut_off.leadership.holder == "near")
                assert (near.started, near.ended, cut_off.started) == (1, 0, 1)


async def test_connection_resets_do_not_lose_leadership(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    async def next_renewal(version: str) -> str | None:
        current = (await client.get(LEASES, "x", namespace)).metadata.resource_version
        return current if current != version else None

    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as shaky, working(shaky, namespace, "me", PATIENT) as worker:
            await eventually(lambda: worker.started)
            version = ""
            for _ in range(10):
                version = await eventually(partial(next_renewal, version)) or ""
                proxy.reset()
            assert (worker.started, worker.ended) == (1, 0)


async def test_leader_that_cannot_release_logs_it_and_ends(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    async with FaultProxy(cluster.server) as proxy:
        path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with Client(kubeconfig.load(path)) as far_client:
            with capture_logs() as lines:
                async with working(far_client, namespace, "me") as worker:
                    await eventually(lambda: worker.started)
                    proxy.go_silent()
            assert lines[-1]["event"] == "lease not released, it will expire"
            assert worker.ended == 1
            assert not worker.leadership.leads
    assert (await client.get(LEASES, "x", namespace)).spec.holder_identity == "me"


async def test_a_former_leader_does_not_release_anothers_lease(client: Client, namespace: str) -> None:
    async with working(client, namespace, "me") as worker:
        await eventually(lambda: worker.started)
        await client.patch(LEASES, "x", MergePatch({"spec": {"holderIdentity": "other"}}), namespace)
        await eventually(lambda: worker.ended)
    assert (await client.get(LEASES, "x", namespace)).spec.holder_identity == "other"
