"""Upgrade from 0.1 and rollback to it under load: programs of both run on one control plane and one Ceph at a time.

0.1 comes from the history of this repository. In a clone without that history the present tree takes its place, on what
0.1 had stored (tests/recorded); the end of the test run says which it was.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, RpcFailed
from support.ceph.node import Volume, capability
from support.disruption import cluster
from support.disruption.cluster import BUDGETS, ZONES
from support.disruption.processes import Balancer, Zonewise, install, uninstall
from support.disruption.violations import watching
from support.fault_report import Report
from support.lab import shared_cluster
from support.lab.machine import ZONEWISE
from support.process import Program, wait_for
from support.release import PRESENT, RECORDED, Release, first_release
from support.slices.churn import Churn, Observer
from support.slices.cluster import ClusterNamespace, ControllerProcess, settled
from support.upgrade_load import Csi, Evictions, Questions, VolumeCalls, writing
from support.waiting import eventually
from zonewise.api.names import PADDING, ROUTING_STATE, SAME_ZONE, STARTING_THRESHOLD
from zonewise.ceph.node import mounts
from zonewise.install import apply as apply_manifests
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client as KubeClient
from zonewise.lab import labs
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.demo import zone_answers
from zonewise.lab.state import Lab, LabOptions
from zonewise.objects import SERVICES

pytestmark = pytest.mark.timeout(1800)

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
ORDERS = (("webhook", "leader", "webhook"), ("leader", "webhook", "webhook"), ("webhook", "webhook", "leader"))
ROUNDS = 3 if LONG else 1
EVICTIONS = 30 if LONG else 3
CHANGES = 400 if LONG else 40
CALLS = 20 if LONG else 1


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return first_release(tmp_path_factory.mktemp("first")) or PRESENT


def recorded(name: str) -> Any:
    return json.loads((RECORDED / name).read_bytes())


# Budgets: leader and webhooks.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("upgrade")


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run, folder: Path) -> Iterator[ControlPlane]:
    plane = run_directory.private(**cluster.control_plane_settings(folder))
    yield plane
    run_directory.remove(plane)


async def replace(running: Zonewise, part: str, release: Release) -> Program:
    """As a Deployment does: the new one is ready before the old one gets SIGTERM, and is returned."""
    programs = running.leaders if part == "leader" else running.webhooks
    start = running.start_leader if part == "leader" else running.start_webhook
    number = max(programs) + 1
    lameduck = ("--lameduck-seconds", 2) if part == "webhook" and release is PRESENT else ()
    new = await start(number, *lameduck, command=release.command)
    await asyncio.to_thread(new.wait_ready)
    oldest = min(programs)
    ending = programs.pop(oldest)
    ending.signal(signal.SIGTERM)
    running.balancer.backends.pop(oldest if part == "webhook" else -1, None)
    return ending


@pytest.mark.xdist_group("upgrade-budgets")
@pytest.mark.parametrize("order", ORDERS if LONG else ORDERS[:1], ids="-".join)
async def test_budgets_hold_through_upgrade_and_rollback(
    plane: ControlPlane, folder: Path, old: Release, order: tuple[str, ...], report: Report
) -> None:
    """Webhooks of the first release do not know the key of their callers: while some still run, evictions may fail,
    as they do until API servers trust the certificate of the newer ones: closed, and no budget is broken.

    They can't be rolled back under load for the same reason (docs/upgrade.md).
    """
    async with cluster.disruption_namespace(plane, folder) as ns, Balancer() as balancer:
        await install(plane, old.manifests)
        await ns.make_nodes()
        await ns.replica_set("web", 9)
        term = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]}
        await ns.budget("web", selector={"matchLabels": {"app": "web"}}, maxUnavailable=1, nodeSelectorTerm=term)
        await ns.until_ready("web", 9)
        if old is PRESENT:
            stored = await ns.client.get(BUDGETS, "web", ns.namespace)
            whole = {**stored, "status": recorded("budget-status.json")}
            await ns.client.update(BUDGETS, whole, ns.namespace, subresource="status")
        running, load, ending = Zonewise(plane, balancer), Evictions(ns, "web"), list[Program]()
        try:
            await running.start_leader(0, command=old.command)
            for number in range(2):
                await running.start_webhook(number, command=old.command)
            await running.ready()
            async with watching(ns, "web", dict.fromkeys(ZONES, 2)) as watcher, load.going_on():
                for _ in range(ROUNDS):
                    for release, parts in ((PRESENT, order), (old, ["leader"])):
                        await install(plane, release.manifests)
                        for part in parts:
                            await load.more(EVICTIONS)
                            ending.append(await replace(running, part, release))
                        await load.more(EVICTIONS)
                assert [await asyncio.to_thread(program.end) for program in ending] == [0] * len(ending)
        finally:
            for program in ending:
                await asyncio.to_thread(program.remove)
            await running.stop()
            await uninstall(ns.client)
        assert watcher.violations == []
        assert watcher.initial == dict.fromkeys(ZONES, 3)
        assert set(load.outcomes) <= {"gone", "refused", "not found", "cut off", "webhook failed"}, load.outcomes
        # A webhook of the first release closes idle connections, and an API server may just have sent a call on one.
        assert load.outcomes["cut off"] <= 2, load.outcomes
    refused = load.outcomes["cut off"] + load.outcomes["webhook failed"]
    row = {"component": "disruption", "fault": "upgraded from 0.1, leader rolled back"}
    report(**row, rounds=ROUNDS, requests=load.outcomes.total(), what="evictions", refused=refused)


# EndpointSlices, mode own.


@asynccontextmanager
async def slice_controller(plane: ControlPlane, ns: ClusterNamespace, release: Release) -> AsyncIterator[Program]:
    lease = ("--lease-namespace", ns.namespace, "--lease-seconds", "6")
    controller = ControllerProcess(plane, *lease, command=release.command)
    try:
        await asyncio.to_thread(controller.wait_ready)
        yield controller
    finally:
        await asyncio.to_thread(controller.remove)


async def routing_state(ns: ClusterNamespace, service: str) -> dict[str, Any]:
    annotations = (await ns.client.get(SERVICES, service, ns.namespace)).metadata.annotations
    return dict(json.loads(annotations.get(ROUTING_STATE, "{}")))


@pytest.mark.xdist_group("slice-faults")
async def test_no_service_loses_its_endpoints_through_upgrade_and_rollback(
    breakable: ControlPlane, ns: ClusterNamespace, churn: Churn, observer: Observer, old: Release, report: Report
) -> None:
    """The state of a Service that nobody changes is taken over, not decided anew."""
    policy = {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "0", PADDING: "0"}
    before = {ROUTING_STATE: json.dumps(recorded("routing-annotation.json"))} if old is PRESENT else {}
    for number in range(9):
        await ns.pod(f"steady-{number}", {"app": "steady"}, f"{ZONES[number % 3]}-0")
    await ns.service("steady", annotations={**policy, **before})
    async with churn.going_on():
        async with slice_controller(breakable, ns, old):
            await eventually(lambda: _has_state(ns, "steady"), "a state on the Service")
            first = await routing_state(ns, "steady")
            await _changes(churn)
        for _ in range(ROUNDS):
            for release in (PRESENT, old):
                async with slice_controller(breakable, ns, release):
                    await _changes(churn)
                    assert (await routing_state(ns, "steady")) == first
    async with slice_controller(breakable, ns, PRESENT):
        await settled(ns)
        assert (await routing_state(ns, "steady"))["since"] == first["since"]
    report(**observer.outcome("upgraded from 0.1 and rolled back", ROUNDS))


async def _has_state(ns: ClusterNamespace, service: str) -> bool:
    return (await routing_state(ns, service)).get("active") is True


async def _changes(churn: Churn) -> None:
    enough = churn.changes + CHANGES
    await eventually(lambda: churn.changes >= enough, "changes go on")


# Volumes: CSI controller and node plugin.


@pytest.mark.xdist_group("upgrade-volumes")
def test_volumes_survive_upgrade_and_rollback(
    ceph_cluster: LabCeph, tmp_path: Path, old: Release, report: Report
) -> None:
    """Each release unstages what the other staged, and deletes what the other created."""
    config = csi_driver.config_file(tmp_path, ceph_cluster)
    controllers = [Csi("controller", tmp_path, config, ceph_cluster, old) for _ in range(2)]
    node = Csi("node", tmp_path, config, ceph_cluster, old)
    calls, volumes = VolumeCalls(controllers), list[Volume]()

    def make() -> Volume:
        created = controllers[0].driver.create(f"pvc-{uuid.uuid4().hex[:12]}", preferred=["zone-a"])
        volumes.append(Volume(node, created, tmp_path, capability()))  # type: ignore[arg-type] # it has what is used
        return volumes[-1].stage_and_publish()

    try:
        with calls.going_on():
            for _ in range(ROUNDS):
                first = make()
                with writing(first.target / "lines") as written:
                    _replace(calls, controllers, node, PRESENT)
                    second = make()
                    (second.target / "data").write_text("of this tree")
                    first.stage()
                    assert first.stats()["BYTES"].total > 0
                    assert controllers[1].driver.expand(first.id, 128 * MIB) == 128 * MIB
                    _replace(calls, controllers, node, old)
                    assert (second.target / "data").read_text() == "of this tree"
                    second.unpublish_and_unstage()
                lines = (first.target / "lines").read_text().split()
                assert [int(line) for line in lines] == written
                assert len(written) > 0
                _replace(calls, controllers, node, PRESENT)
                first.unpublish_and_unstage()
                for volume in volumes:
                    assert mounts.at(str(volume.target)) is None
                    controllers[0].driver.delete(volume.id)
                volumes.clear()
                assert list(node.state.glob("*")) == []
                if LONG:
                    _replace(calls, controllers, node, old)
    finally:
        for volume in volumes:  # after a failure: a mount would outlive the test
            with suppress(RpcFailed):
                volume.unpublish_and_unstage()
        for process in (*controllers, node):
            process.client.channel.close()
            process.stop()
    made = sum(process.client.calls for process in (*controllers, node))
    report(component="csi", fault="upgraded from 0.1 and rolled back", rounds=ROUNDS, requests=made, what="calls")


def _replace(calls: VolumeCalls, controllers: list[Csi], node: Csi, release: Release) -> None:
    for process in (controllers[0], node, controllers[1]):
        calls.more(CALLS)
        process.run(release)
    calls.more(CALLS)


# Everything that a lab installs: overlay controller and webhook, guard, leader of budgets, node proxies, DNS.


def manifests(release: Release, image: str) -> list[dict[str, Any]]:
    """Of this tree's image; 0.1 finds its libraries in it, and its own sources on the node."""
    options = ("--only", "slices,disruption,proxy,dns", "--mode", "overlay", "--image", image, "-o", "json")
    printed = subprocess.run(
        [sys.executable, release.command, "install", *options], check=True, capture_output=True, text=True
    ).stdout
    documents: list[dict[str, Any]] = json.loads(printed)["items"]
    if release is not PRESENT:
        for document in documents:
            run_from_sources(document.get("spec", {}).get("template", {}).get("spec", {}), release)
    return documents


def run_from_sources(pod: dict[str, Any], release: Release) -> None:
    containers = [*pod.get("initContainers", ()), *pod.get("containers", ())]
    for container in containers:
        container["command"] = ["python", f"/first/{release.command.name}"]
        mount = {"name": "first", "mountPath": "/first", "readOnly": True}
        container.setdefault("volumeMounts", []).append(mount)
    if containers:
        pod.setdefault("volumes", []).append({"name": "first", "hostPath": {"path": str(release.command.parent)}})


def kubectl(lab: Lab, *arguments: str) -> None:
    command = [sys.executable, str(ZONEWISE), "lab", "kubectl", "--name", lab.name, "--", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@asynccontextmanager
async def old_dns_kept(lab: Lab) -> AsyncIterator[None]:
    """As docs/upgrade.md says for 0.1: its DNS servers run beside the new ones, and end when nothing is sent to them."""
    system, servers = ("-n", "kube-system"), "app.kubernetes.io/name=zonewise-dns"
    kubectl(lab, *system, "label", "pods", "-l", servers, "replaced=true")
    kubectl(lab, *system, "delete", "deployments,replicasets", "-l", servers, "--cascade=orphan")
    yield
    kubectl(lab, *system, "label", "pods", "-l", "replaced=true", "k8s-app-")
    await asyncio.sleep(10)
    kubectl(lab, *system, "delete", "pods", "-l", "replaced=true")


def is_dns(document: dict[str, Any]) -> bool:
    return (document["kind"], document["metadata"]["name"]) == ("Deployment", "zonewise-dns")


async def roll_out(
    lab: Lab, release: Release, questions: Questions, random: Random, *, from_first: bool = False
) -> None:
    """All but the programs first, as `install` does, then one program after the other in any order."""
    assert lab.image is not None
    documents = manifests(release, lab.image.name)
    programs = [document for document in documents if document["kind"] in {"Deployment", "DaemonSet"}]
    random.shuffle(programs)
    async with KubeClient(kubeconfig.load(lab.node_kubeconfig)) as client:
        for batch in ([document for document in documents if document not in programs], *([one] for one in programs)):
            questions.during = f"{release.name}: {', '.join(one['metadata']['name'] for one in batch[:1])}"
            async with old_dns_kept(lab) if from_first and is_dns(batch[0]) else nullcontext():
                async for _ in apply_manifests.apply(client, batch, force=True):
                    pass
                await apply_manifests.until_ready(client, batch, 300)


@pytest.mark.xdist_group("upgrade-lab")
@pytest.mark.skipif(not LONG, reason="takes minutes: `make test-faults` runs it")
def test_no_request_and_no_name_is_lost_while_a_lab_is_upgraded_and_rolled_back(report: Report) -> None:
    random, name = Random(os.environ.get("ZONEWISE_SEED", "1")), f"test-{os.getpid()}-up"
    options = LabOptions(zones=zone_names(3), nodes_per_zone=1, kube_proxy=True, demo=True, zonewise=True)
    try:
        lab = labs.up(name, options, lambda _step: None)
        (lab.directory / "first").mkdir()  # where nodes see it
        old = first_release(lab.directory / "first") or PRESENT
        questions = Questions(lab)
        asyncio.run(roll_out(lab, old, questions, random))
        wait_for(lambda: zone_answers.complete(zone_answers.ask(lab, 5, by_name=True)))
        with questions.going_on():
            for release in (PRESENT, old, PRESENT):
                asyncio.run(roll_out(lab, release, questions, random, from_first=release is PRESENT))
        assert questions.unanswered == []
        assert questions.answered.total() > 0
        row = {"component": "all of a lab", "fault": "upgraded from 0.1 and rolled back"}
        report(**row, rounds=3, requests=questions.answered.total(), what="requests")
    finally:
        labs.down(name, lambda _step: None)
