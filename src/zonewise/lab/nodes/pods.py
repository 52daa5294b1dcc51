"""Pod worker: one pod on its node, from binding to removal. Performs the actions of `pod_lifecycle` and reports status.

Two loops, so that a node cut off from the API server still manages its pods: one manages, one reports. Everything
that happens (a change of the pod, a process that ends, a probe's answer) changes the state and wakes both.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from zonewise import log
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound
from zonewise.kube.wire.patch import StrategicPatch
from zonewise.lab import processes
from zonewise.lab.decide import pod_lifecycle, podstatus
from zonewise.lab.decide.addresses import Addresses
from zonewise.lab.decide.environment import ContainerConfigError
from zonewise.lab.decide.pod_lifecycle import ContainerState, LifecycleAction, LifecycleStep, Probing, StartProblem
from zonewise.lab.decide.podspec import PODS, ExecAction, LifecycleHook, RunContainer, RunPod, Sleep
from zonewise.lab.decide.probe_results import ProbeKind, probe_of
from zonewise.lab.nodes import containers, launch, probes, sandbox
from zonewise.lab.nodes.launch import API_DEADLINE_SECONDS, LaunchNode
from zonewise.lab.nodes.sandbox import PodRecord

RETRY_SECONDS = 1.0

_log = log.get_logger(__name__)


class PodWorker:
    """`index` is the pod's address within the node's subnet; None puts it into the node's own network."""

    def __init__(self, node: LaunchNode, record: PodRecord) -> None:
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

    def update(self, pod: RunPod) -> None:
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
            decision = pod_lifecycle.decide(self.pod, self._states, now, gone=self._gone)
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

    async def _perform(self, action: LifecycleAction | Probing) -> None:
        match action:
            case Probing(container, kind):
                self._spawn(_task_name(action), self._probe(container, kind))
            case LifecycleAction(LifecycleStep.START, container):
                await self._start(container)
            case LifecycleAction(LifecycleStep.RUN_HOOK, container):
                self._set(container, stop_asked_at=time.time())
                self._spawn(_task_name(action), self._run_hook(container))
            case LifecycleAction(LifecycleStep.TERMINATE, container):
                asked_at = self._state(container).stop_asked_at or time.time()
                self._set(container, stop_asked_at=asked_at, terminated=True)
                self._signal(container, signal.SIGTERM)
            case LifecycleAction(LifecycleStep.KILL, container):
                self._set(container, killed=True)
                self._signal(container, signal.SIGKILL)

    async def _start(self, container: RunContainer) -> None:
        try:
            if not self._attached:
                await self._attach()
            process = await launch.start(
                self._node, self.pod, container, self.directory, self.namespace, self.addresses
            )
        except (ContainerConfigError, ApiError) as error:
            retry_at = time.time() + pod_lifecycle.CONFIG_RETRY_SECONDS
            self._set(container, problem=StartProblem("CreateContainerConfigError", str(error), retry_at))
            return
        self._put(container, self._state(container).started(time.time()))
        self._watch(container, process)

    async def _attach(self) -> None:
        self._save()  # first: the next agent must know of it after a crash
        if self.index is not None:
            await asyncio.to_thread(sandbox.attach, self._node.lab, self._node.plan, self.pod, self.addresses)
        self._attached = True

    async def _release(self) -> None:
        """Nothing of the pod runs any more, nor will: give its network back."""
        if self.index is not None:
            await asyncio.to_thread(sandbox.detach, self._node.lab, self._node.plan, self.pod)
        self._attached = False
        self._over = True
        self._wake()

    # Background events.

    def _adopt(self) -> None:
        """Go on with what an earlier agent of this node has started, on record or, if it was killed at once, not yet."""
        for container in self.pod.all_containers:
            state, process = self._state(container), containers.find(self.directory, container)
            if process is not None:
                self._put(container, state if state.running else state.started(time.time()))
                self._watch(container, process)
            elif state.running:
                self._put(container, state.exited(pod_lifecycle.UNKNOWN_EXIT_CODE, time.time(), unseen=True))
        self._attached = bool(self._processes)  # without a process the network may be half made

    def _watch(self, container: RunContainer, process: processes.Process) -> None:
        self._processes[container.name] = process
        self._spawn(f"run {container.name}", self._await_end(container, process))

    async def _await_end(self, container: RunContainer, process: processes.Process) -> None:
        code = await containers.ended(process)
        del self._processes[container.name]
        known = pod_lifecycle.UNKNOWN_EXIT_CODE if code is None else code
        self._put(container, self._state(container).exited(known, time.time(), unseen=code is None))

    async def _probe(self, container: RunContainer, kind: ProbeKind) -> None:
        probe, process = probe_of(container, kind), self._processes.get(container.name)
        if probe is None or process is None:
            return
        now = time.time()
        success, output = await probes.ask(
            probe, probes.ProbeTarget(process, self.namespace, self.addresses.v4, container)
        )
        state = self._state(container)
        if self._processes.get(container.name) is not process:
            return  # the answer is of a run that has ended
        self._put(container, state.probed(container, kind, success, now))
        if not success:
            _log.info("probe failed", pod=str(self.pod), container=container.name, probe=str(kind), output=output[:200])

    async def _run_hook(self, container: RunContainer) -> None:
        process = self._processes.get(container.name)
        if process is None:
            return
        await self._hook(container, process)
        if self._processes.get(container.name) is process:
            self._set(container, hook_done=True)

    async def _hook(self, container: RunContainer, process: processes.Process) -> None:
        match container.lifecycle.pre_stop:
            case LifecycleHook(sleep=Sleep(seconds=seconds)):
                await asyncio.sleep(seconds)
            case LifecycleHook(exec_=ExecAction(command=command)):
                patience = float(self.pod.spec.termination_grace_period_seconds)
                success, output = await containers.run_beside(process, self.namespace, command, patience)
                if not success:
                    _log.warning(
                        "preStop hook failed", pod=str(self.pod), container=container.name, output=output[:200]
                    )
            case _:
                _log.warning("the lab supports exec and sleep hooks only", pod=str(self.pod), container=container.name)

    # State.

    def _state(self, container: RunContainer) -> ContainerState:
        return pod_lifecycle.state_of(self._states, container)

    def _set(self, container: RunContainer, **changes: Any) -> None:
        self._put(container, msgspec.structs.replace(self._state(container), **changes))

    def _put(self, container: RunContainer, state: ContainerState) -> None:
        self._states[container.name] = state
        self._save()
        self._wake()

    def _save(self) -> None:
        sandbox.save(self.directory, PodRecord(self.pod, self.index, self._since, self._states))

    def _wake(self) -> None:
        self._changed.set()
        self._unreported.set()

    def _signal(self, container: RunContainer, number: signal.Signals) -> None:
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

    # Reporting to the API server.

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
                PODS,
                metadata.name,
                StrategicPatch(body),
                metadata.namespace,
                subresource="status",
                deadline_seconds=API_DEADLINE_SECONDS,
            )
        except (NotFound, Conflict):
            return  # it is gone, or another one has its name: the watch will report it
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
        """The last report, and the object's removal: which confirms that nothing of the pod is left."""
        metadata, limit = self.pod.metadata, API_DEADLINE_SECONDS
        while not self._gone:
            try:
                await self._report()
                await self._node.client.delete(
                    PODS, metadata.name, metadata.namespace, uid=metadata.uid, grace_seconds=0, deadline_seconds=limit
                )
            except (NotFound, Conflict):
                return
            except ApiError as error:
                _log.warning("pod not deleted", pod=str(self.pod), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


def _task_name(action: LifecycleAction | Probing) -> str:
    match action:
        case Probing(container, kind):
            return f"{kind} probe of {container.name}"
        case LifecycleAction(kind, container):
            return f"{kind} {container.name}"
