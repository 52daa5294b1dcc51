"""Node agent of a namespace node, in the role of a kubelet: registers the Node, sends heartbeats, runs pods.

`python -m zonewise.lab.nodes.agent CONFIG NODE...` forks one agent per node, which enters the node's namespace; forking after
the imports lets six nodes start in the time of one and share its memory. An agent may be killed at any moment: its pods
keep running, and the next agent of the node adopts them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from zonewise import log
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError, NotFound
from zonewise.kube.wire.patch import Apply, StrategicPatch
from zonewise.lab import processes
from zonewise.lab.decide import addresses, node_registration
from zonewise.lab.decide.addresses import AddressPlan, NodePlan
from zonewise.lab.decide.podspec import PODS, RunPod
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import sandbox
from zonewise.lab.nodes.agents import AgentConfig, process_name
from zonewise.lab.nodes.launch import API_DEADLINE_SECONDS, LaunchNode, PodServices
from zonewise.lab.nodes.pods import RETRY_SECONDS, PodWorker
from zonewise.lab.nodes.sandbox import PodRecord
from zonewise.objects import LEASES, NODES, key_of
from zonewise.objects.change import Change

HEARTBEAT_SECONDS = 4.0

_log = log.get_logger(__name__)


class Agent:
    """Gives every pod of the node a worker, and every worker an address."""

    def __init__(self, node: LaunchNode, tasks: asyncio.TaskGroup) -> None:
        self._node = node
        self._tasks = tasks
        self._workers: dict[str, PodWorker] = {}
        self._last_index = 0

    def restore(self, known: Cache[RunPod]) -> None:
        """Adopt the pods of an earlier agent; those that the API server no longer has are ended."""
        for record in sandbox.recorded(self._node.pods_directory):
            worker = self._employ(record)
            current = known.get(key_of(record.pod))
            if current is None or current.metadata.uid != record.pod.metadata.uid:
                worker.vanish()

    def changed(self, change: Change[RunPod]) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            worker = self._workers.get(old.metadata.uid)
            if worker is not None:
                worker.vanish()
        if new is not None:
            worker = self._workers.get(new.metadata.uid) or self._employ(self._new_record(new))
            worker.update(new)

    def _new_record(self, pod: RunPod) -> PodRecord:
        index = None if pod.spec.host_network else self._free_index()
        return PodRecord(pod, index, time.time(), {})

    def _free_index(self) -> int:
        taken = {worker.index for worker in self._workers.values() if worker.index is not None}
        self._last_index = sandbox.free_index(taken, self._last_index)
        return self._last_index

    def _employ(self, record: PodRecord) -> PodWorker:
        uid = record.pod.metadata.uid
        worker = self._workers[uid] = PodWorker(self._node, record)
        task = self._tasks.create_task(_keep_working(worker), name=f"pod {record.pod}")
        task.add_done_callback(lambda _: self._workers.pop(uid))
        return worker


async def _keep_working(worker: PodWorker) -> None:
    """What goes wrong with one pod must end neither the node's agent nor the care for this pod."""
    while True:
        try:
            return await worker.run()
        except Exception:  # noqa: BLE001 - as above
            _log.exception("pod worker failed, and starts again", pod=str(worker.pod))
        await asyncio.sleep(RETRY_SECONDS)


async def serve(config: AgentConfig, name: str) -> None:
    """Until killed."""
    plan = _plan(config).node(name)
    access = kubeconfig.load(config.kubeconfig)
    async with (
        Client(access, field_manager="zonewise-lab") as client,
        asyncio.TaskGroup() as tasks,
        Caches(client) as caches,
    ):
        tasks.create_task(_heartbeat(client, plan))
        pods = caches.of(PODS, fields=f"spec.nodeName={name}")
        await caches.wait_synced()
        agent = Agent(_node(config, plan, client), tasks)
        agent.restore(pods)
        pods.on_change(agent.changed)
        await asyncio.Event().wait()


def _node(config: AgentConfig, plan: NodePlan, client: Client) -> LaunchNode:
    server = urlsplit(client.access.server)
    return LaunchNode(
        lab=config.lab,
        plan=plan,
        labels=node_registration.labels(plan),
        pods_directory=sandbox.pods_directory(Path(config.directory), plan.name),
        client=client,
        api_server=(server.hostname or "", server.port or 443),
        services=PodServices(client),
        kubeconfig=Path(config.kubeconfig),
        cluster_dns=config.cluster_dns,
    )


async def _heartbeat(client: Client, plan: NodePlan) -> None:
    reported = None
    while True:
        try:
            await _beat(client, plan)
            trouble = ""
        except ApiError as error:
            trouble = str(error)
        if trouble != reported:
            _log.info("heartbeat", node=plan.name, trouble=trouble or "none")
            reported = trouble
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def _beat(client: Client, plan: NodePlan) -> None:
    now = dt.datetime.now(dt.UTC)
    limit = API_DEADLINE_SECONDS
    try:
        node = await client.get(NODES, plan.name, deadline_seconds=limit)
    except NotFound:
        node = await client.create(NODES, node_registration.node_object(plan, now), deadline_seconds=limit)
    if node_registration.needs_conditions(node):
        status = StrategicPatch({"status": node_registration.node_conditions(now)})
        await client.patch(NODES, plan.name, status, subresource="status", deadline_seconds=limit)
        _log.info("node ready again", node=plan.name)
    lease = Apply(node_registration.lease(plan, node.metadata.uid, now), force=True)
    await client.patch(LEASES, plan.name, lease, node_registration.LEASE_NAMESPACE, deadline_seconds=limit)


def main(argv: Sequence[str]) -> None:
    config = msgspec.json.decode(argv[0], type=AgentConfig)
    gc.freeze()  # what is imported stays shared between the forks
    for name in argv[1:]:
        if os.fork() == 0:
            _become(config, name)


def _become(config: AgentConfig, name: str) -> NoReturn:
    """The forked process: on record, with its own log, in the node's namespace; it does not return."""
    directory = Path(config.directory)
    os.setsid()
    processes.record_self(directory, process_name(name))
    _redirect_output(processes.log_path(directory, process_name(name)))
    namespaces.enter(_plan(config).node(name).namespace)
    log.configure()
    try:
        asyncio.run(serve(config, name))
    except BaseException:
        _log.exception("agent ended", node=name)
        raise
    sys.exit(1)


def _plan(config: AgentConfig) -> AddressPlan:
    return addresses.plan(config.lab, config.slot, config.zones, config.nodes_per_zone)


def _redirect_output(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


if __name__ == "__main__":
    main(sys.argv[1:])
