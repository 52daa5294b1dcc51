"""One pod on its node, from binding to removal: asks `lifecycle` what to do, does it, and reports what came of it.

Two loops, so that a node cut off from the API server goes on caring for its pods: one manages, one reports. Everything
that happens (a change of the pod, a process that ends, a probe's answer) changes the state and wakes both.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from zonewise import log
from zonewise.kube.client import Client
from zonewise.kube.errors import ApiError, Conflict, NotFound
from zonewise.kube.patch import StrategicPatch
from zonewise.lab import containers, environment, lifecycle, podstatus, probes, processes, sandbox
from zonewise.lab.addresses import Addresses, NodePlan
from zonewise.lab.environment import ConfigError, Surroundings
from zonewise.lab.health import ProbeKind, probe_of
from zonewise.lab.lifecycle import Act, ContainerState, Probing, Problem
from zonewise.lab.podspec import PODS, Container, Hook, Pod
from zonewise.lab.sandbox import PodRecord
from zonewise.objects import CONFIG_MAPS, SERVICES, Service

API_DEADLINE_SECONDS = 5.0
RETRY_SECONDS = 1.0
TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")

_log = log.get_logger(__name__)


class Services:
    """The Services of a namespace as of now, or as last known while the API server is away.

    Not a watch: a pod may be heard of before the Service that was created before it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, Sequence[Service]] = {}

    async def of(self, namespace: str) -> Sequence[Service]:
        try:
            listing = await self._client.list(SERVICES, namespace, deadline_seconds=API_DEADLINE_SECONDS)
        except ApiError:
            return self._known.get(namespace, ())
        self._known[namespace] = listing.items
        return listing.items


@dataclass(frozen=True, slots=True)
class Node:
    """What every pod of a node shares."""

    lab: str
    plan: NodePlan
    labels: Mapping[str, str]
    pods_directory: Path
    client: Client
    api_server: tuple[str, int]
    services: Services


class PodWorker:
    """`index` is the pod's address within the node's subnet; None puts it into the node's own network."""

    def __init__(self, node: Node, record: PodRecord) -> None:
        self.pod = record.pod
        self.index = record.index
        self._node = node
        self._since = record.since
        self._states = dict(record.states)
        self._gone = False
        self._attached = False
        self._over = False
        self._processes: dict[str, processes.Process] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._unreported = asyncio.Event()
        self._sent: podstatus.Json | None = None

    @property
    def directory(self) -> Path:
        return sandbox.directory_of(self._node.pods_directory, self.pod)

    @property
    def namespace(self) -> str:
        return self._node.plan.namespace if self.index is None else sandbox.namespace_of(self._node.lab, self.pod)

    @property
    def addresses(self) -> Addresses:
        return self._node.plan.address if self.index is None else self._node.plan.pods.address(self.index)

    def update(self, pod: Pod) -> None:
        """The object has changed; what is older than the last answer to a report is no news."""
        if int(pod.metadata.resource_version) >= int(self.pod.metadata.resource_version):
            self.pod = pod
            self._wake()

    def vanish(self) -> None:
        """The object is gone."""
        self._gone = True
        self._wake()

    async def run(self) -> None:
        """Until the pod is gone from the API server and the node."""
        try:
            self._adopt()
            async with asyncio.TaskGroup() as loops:
                reporting = loops.create_task(self._report_always())
                await self._manage()
                reporting.cancel()
            await self._delete()
            sandbox.forget(self.directory)
        finally:
            for task in self._busy.values():
                task.cancel()

    # Managing: what runs.

    async def _manage(self) -> None:
        while True:
            self._changed.clear()
            try:
                pause = await self._step()
            except Exception:  # noqa: BLE001 - one pod's trouble must not end the others'
                _log.exception("pod not managed as it should be", pod=str(self.pod))
                pause = RETRY_SECONDS
            if self._over and (self._gone or self.pod.terminating):
                return
            await self._pause(pause)

    async def _step(self) -> float | None:
        """Do all there is to do now; the answer is the seconds until there may be more."""
        while True:
            now = time.time()
            decision = lifecycle.decide(self.pod, self._states, now, gone=self._gone)
            actions = [action for action in decision.actions if _task_name(action) not in self._busy]
            for action in actions:
                await self._perform(action)
            if not actions:
                break
        if decision.over and not self._over:
            await self._release()
        return None if decision.wake_at is None else max(0.0, decision.wake_at - now)

    async def _pause(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    async def _perform(self, action: Act | Probing) -> None:
        match action:
            case Probing(container, kind):
                self._spawn(_task_name(action), self._probe(container, kind))
            case Act("start", container):
                await self._start(container)
            case Act("run-hook", container):
                self._set(container, stop_asked_at=time.time())
                self._spawn(_task_name(action), self._run_hook(container))
            case Act("terminate", container):
                asked_at = self._state(container).stop_asked_at or time.time()
                self._set(container, stop_asked_at=asked_at, terminated=True)
                self._signal(container, signal.SIGTERM)
            case Act("kill", container):
                self._set(container, killed=True)
                self._signal(container, signal.SIGKILL)

    async def _start(self, container: Container) -> None:
        try:
            if not self._attached:
                await self._attach()
            around = await self._surroundings(container)
            containers.make_volumes(self.directory, self.pod, container, around.config_maps)
            variables = environment.variables(self.pod, container, around)
            argv = environment.command_line(container, variables)
            process = containers.start(self.directory, self.namespace, container, argv, variables)
        except (ConfigError, ApiError) as error:
            retry_at = time.time() + lifecycle.CONFIG_RETRY_SECONDS
            self._set(container, problem=Problem("CreateContainerConfigError", str(error), retry_at))
            return
        self._put(container, self._state(container).started(time.time()))
        self._watch(container, process)

    async def _attach(self) -> None:
        if self.index is not None:
            await asyncio.to_thread(sandbox.attach, self._node.lab, self._node.plan, self.pod, self.addresses)
        self._attached = True

    async def _surroundings(self, container: Container) -> Surroundings:
        namespace = self.pod.metadata.namespace
        config_maps = {}
        for name in environment.config_maps_of(self.pod, container):
            try:
                found = await self._node.client.get(CONFIG_MAPS, name, namespace, deadline_seconds=API_DEADLINE_SECONDS)
            except NotFound:
                continue
            config_maps[name] = found.data
        return Surroundings(
            host=self._node.plan.address,
            addresses=self.addresses,
            topology={label: self._node.labels[label] for label in TOPOLOGY_LABELS},
            api_server=self._node.api_server,
            services=await self._node.services.of(namespace),
            config_maps=config_maps,
        )

    async def _release(self) -> None:
        """Nothing of the pod runs any more, nor will: give its network back."""
        if self.index is not None:
            await asyncio.to_thread(sandbox.detach, self._node.lab, self._node.plan, self.pod)
        self._attached = False
        self._over = True
        self._wake()

    # What happens by itself.

    def _adopt(self) -> None:
        """Go on with what an earlier agent of this node has started."""
        for container in self.pod.all_containers:
            state = self._state(container)
            if not state.running:
                continue
            self._attached = True
            process = containers.find(self.directory, container)
            if process is None:
                self._put(container, state.exited(lifecycle.UNKNOWN_EXIT_CODE, time.time(), unseen=True))
            else:
                self._watch(container, process)

    def _watch(self, container: Container, process: processes.Process) -> None:
        self._processes[container.name] = process
        self._spawn(f"run {container.name}", self._await_end(container, process))

    async def _await_end(self, container: Container, process: processes.Process) -> None:
        code = await containers.ended(process)
        del self._processes[container.name]
        unseen = code is None
        self._put(
            container,
            self._state(container).exited(
                lifecycle.UNKNOWN_EXIT_CODE if code is None else code, time.time(), unseen=unseen
            ),
        )

    async def _probe(self, container: Container, kind: ProbeKind) -> None:
        probe, asked = probe_of(container, kind), self._state(container).started_at
        assert probe is not None
        now = time.time()
        target = probes.Target(self.directory, self.namespace, self.addresses.v4, container)
        success, said = await probes.ask(probe, target)
        state = self._state(container)
        if state.started_at != asked:
            return  # the answer is of a run that has ended
        self._put(container, state.probed(container, kind, success, now))
        if not success:
            _log.info("probe failed", pod=str(self.pod), container=container.name, probe=str(kind), said=said[:200])

    async def _run_hook(self, container: Container) -> None:
        hook = container.lifecycle.pre_stop
        assert hook is not None
        asked = self._state(container).started_at
        await self._hook(hook, container)
        if self._state(container).started_at == asked:
            self._set(container, hook_done=True)

    async def _hook(self, hook: Hook, container: Container) -> None:
        grace = float(self.pod.spec.termination_grace_period_seconds)
        if hook.sleep is not None:
            await asyncio.sleep(hook.sleep.seconds)
        elif hook.exec_ is not None:
            ok, said = await containers.run_inside(self.directory, self.namespace, hook.exec_.command, grace)
            if not ok:
                _log.warning("preStop hook failed", pod=str(self.pod), container=container.name, said=said[:200])

    # State.

    def _state(self, container: Container) -> ContainerState:
        return lifecycle.state_of(self._states, container)

    def _set(self, container: Container, **changes: Any) -> None:
        self._put(container, msgspec.structs.replace(self._state(container), **changes))

    def _put(self, container: Container, state: ContainerState) -> None:
        self._states[container.name] = state
        sandbox.save(self.directory, PodRecord(self.pod, self.index, self._since, self._states))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._unreported.set()

    def _signal(self, container: Container, number: signal.Signals) -> None:
        process = self._processes.get(container.name)
        if process is not None and process.running:
            containers.kill_group(process.pid, number)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"{self.pod}: {name}")
        self._busy[name] = task
        task.add_done_callback(lambda _: self._finish(name, task))

    def _finish(self, name: str, task: asyncio.Task[None]) -> None:
        if self._busy.get(name) is task:
            del self._busy[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a pod's task failed", pod=str(self.pod), task=name, error=repr(error))
        self._wake()

    # Reporting: what the API server knows.

    async def _report_always(self) -> None:
        while True:
            await self._unreported.wait()
            self._unreported.clear()
            try:
                await self._report()
            except ApiError as error:
                _log.warning("pod status not reported", pod=str(self.pod), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._unreported.set()

    async def _report(self) -> None:
        status = self._status()
        if self._gone or not podstatus.tells_news(self.pod, self._sent, status):
            return
        body = {"metadata": {"uid": self.pod.metadata.uid}, "status": status}
        metadata = self.pod.metadata
        try:
            answer = await self._node.client.patch(
                PODS, metadata.name, StrategicPatch(body), metadata.namespace, subresource="status",
                deadline_seconds=API_DEADLINE_SECONDS,
            )  # fmt: skip
        except (NotFound, Conflict):
            return  # it is gone, or another one has its name: the watch will tell
        self._sent = status
        self.update(answer)

    def _status(self) -> podstatus.Json:
        return podstatus.report(
            self.pod,
            self._states,
            host=self._node.plan.address,
            addresses=self.addresses if self._attached else None,
            since=self._since,
            now=time.time(),
        )

    async def _delete(self) -> None:
        """The last report, and the object's removal: the node's word that nothing of the pod is left."""
        while not self._gone:
            try:
                await self._report()
                await self._node.client.delete(
                    PODS, self.pod.metadata.name, self.pod.metadata.namespace, uid=self.pod.metadata.uid,
                    grace_seconds=0, deadline_seconds=API_DEADLINE_SECONDS,
                )  # fmt: skip
            except (NotFound, Conflict):
                return
            except ApiError as error:
                _log.warning("pod not deleted", pod=str(self.pod), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


def _task_name(action: Act | Probing) -> str:
    match action:
        case Probing(container, kind):
            return f"{kind} probe of {container.name}"
        case Act(kind, container):
            return f"{kind} {container.name}"
