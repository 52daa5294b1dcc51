"""The four stories, on a real control plane, each first as stock does it and then with Zonewise.

Zone bar has one node, the others have three: stock takes pods of full nodes first, so it is bar that loses all.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.disruption import cluster
from support.disruption.cluster import BUDGETS, DEPLOYMENTS, STATEFUL_SETS, STOCK_BUDGETS, Bed
from support.disruption.kwok import READY_AFTER
from support.disruption.processes import Installed
from support.disruption.violations import Watcher, watching
from support.waiting import eventually
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("disruption")

ZONES = ("bar", "baz", "qux")
SLOW = {READY_AFTER: "400ms"}
THREE_AT_ONCE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 3}}
EVERYWHERE = "everywhere"

HEAD = """
apiVersion: zonewise.dev/v1alpha1
kind: TopologyDisruptionBudget
metadata:
  name: app-pdb
"""
ONE_ZONE = f"""{HEAD}
spec:
  maxUnavailable: 0
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      # Only allow evicting/updating pods in zone "bar"
      matchExpressions:
      - key: failure-domain.beta.kubernetes.io/zone
        operator: NotIn
        values:
        - bar
      - key: failure-domain.beta.kubernetes.io/zone
        operator: Exists
"""
ONE_ZONE_AT_A_TIME = f"""{HEAD}
spec:
  maxUnavailable: "100%"
  maxDisruptedDomains: 1
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      matchExpressions:
      - key: topology.kubernetes.io/zone
        operator: Exists
"""
ONE_PER_ZONE = f"""{HEAD}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      # Only allow 1 pod to be evicted/updated per zone
      matchExpressions:
      - key: failure-domain.beta.kubernetes.io/zone
        operator: Exists
"""
ONE_OF_ALL = f"""{HEAD}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: foo
"""


@pytest.fixture
async def bed(disruption_plane: ControlPlane, disruption_folder: Path) -> AsyncIterator[Bed]:
    async with cluster.bed(disruption_plane, disruption_folder) as made:
        await made.make_nodes(("bar",), 1)
        await made.make_nodes(("baz", "qux"), 3)
        yield made


async def apply(bed: Bed, written: str) -> None:
    """As people do, and waits until it is counted."""
    path = bed.folder / f"{bed.namespace}.yaml"
    path.write_text(written)
    await bed.kubectl("apply", "-f", str(path))
    await eventually(lambda: is_counted(bed), "the budget is counted")


async def is_counted(bed: Bed) -> bool:
    budget = await bed.client.get(BUDGETS, "app-pdb", bed.namespace)
    return bool(budget.get("status", {}).get("observedGeneration") == budget["metadata"]["generation"])


async def uids(bed: Bed, zone: str) -> set[str]:
    zones = await bed.zone_of_nodes()
    return {pod.metadata.uid for pod in await bed.pods("foo") if zones.get(pod.spec.node_name) == zone}


async def replaced(bed: Bed, old: set[str], count: int = 9) -> bool:
    pods = [pod for pod in await bed.pods("foo") if cluster.is_available(pod)]
    return len(pods) == count and not old & {pod.metadata.uid for pod in pods}


async def is_new(bed: Bed, zone: str, old: set[str]) -> bool:
    return (await bed.ready_by_zone("foo"))[zone] == 3 and not old & await uids(bed, zone)


async def nine_pods(bed: Bed, kind: str = "deployment") -> set[str]:
    """Three in each zone, and three of each version of a Deployment, whatever of the others is still there; gives their uids."""
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    labels = {"labelSelector": {"matchLabels": {"app": "foo"}}}
    template = bed.template("foo")["spec"]["topologySpreadConstraints"]
    spread = [each | {"matchLabelKeys": ["pod-template-hash"]} for each in (*template, apart | labels)]
    if kind == "deployment":
        await bed.deployment(
            "foo", 9, strategy=THREE_AT_ONCE, pod_annotations=SLOW, pod_topologySpreadConstraints=spread
        )
    else:
        evict = {"zonewise.dev/update": "Evict"}
        update = "RollingUpdate" if kind == "stock stateful set" else "OnDelete"
        await bed.stateful_set("foo", 9, annotations=evict, update=update, pod_annotations=SLOW)
    return {pod.metadata.uid for pod in await bed.until_ready("foo", 9)}


async def roll_out(bed: Bed, old: set[str], floors: dict[str, int]) -> Watcher:
    """A new version of the Deployment, every pod event watched until all is new."""
    async with watching(bed, "foo", floors) as watcher:
        if EVERYWHERE in floors:
            watcher.zones = dict.fromkeys(watcher.zones, EVERYWHERE)
        await bed.new_version(DEPLOYMENTS, "foo")
        await eventually(lambda: replaced(bed, old), "all pods are new")
    return watcher


async def test_1_stock_updates_whatever_zone_comes(bed: Bed) -> None:
    old = await nine_pods(bed, "stock stateful set")
    await bed.new_version(STATEFUL_SETS, "foo")
    await eventually(lambda: replaced(bed, old), "all zones are new, and nobody was asked")


async def test_2_stock_takes_all_of_a_zone(bed: Bed) -> None:
    watcher = await roll_out(bed, await nine_pods(bed), dict.fromkeys(ZONES, 2))
    assert watcher.lowest["bar"] == 0
    assert watcher.violations
    await bed.budget(resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "foo"}}, maxUnavailable=3)
    await eventually(lambda: stock_allows(bed, 3), "a stock budget that lets three go")
    await bed.drain(bed.node("bar", 0))
    assert not await bed.in_zone("foo", "bar"), "nor does it know of zones in a drain"
    await bed.kubectl("uncordon", bed.node("bar", 0))


async def stock_allows(bed: Bed, pods: int) -> bool:
    found = await bed.client.get(STOCK_BUDGETS, "budget", bed.namespace)
    return bool(found.get("status", {}).get("disruptionsAllowed") == pods)


async def test_3_a_stock_budget_does_not_hold_a_rollout(bed: Bed) -> None:
    old = await nine_pods(bed)
    await bed.budget(resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "foo"}}, maxUnavailable=1)
    watcher = await roll_out(bed, old, {EVERYWHERE: 8})
    assert watcher.lowest[EVERYWHERE] <= 6


async def test_4_stock_scales_a_zone_away(bed: Bed) -> None:
    await nine_pods(bed)
    await bed.scale(DEPLOYMENTS, "foo", 6)
    await bed.until_ready("foo", 6)
    assert await bed.ready_by_zone("foo") == {"baz": 3, "qux": 3}


async def test_1_update_by_failure_domain(bed: Bed, installed: Installed) -> None:
    """Zone by zone, as the owner moves the budget on; a drain elsewhere waits."""
    await nine_pods(bed, "stateful set")
    await apply(bed, ONE_ZONE)
    before = {zone: await uids(bed, zone) for zone in ZONES}
    await bed.new_version(STATEFUL_SETS, "foo")
    await eventually(lambda: is_new(bed, "bar", before["bar"]), "bar is new")
    (held, *_) = await bed.in_zone("foo", "baz")
    node = next(pod.spec.node_name for pod in await bed.pods("foo") if pod.metadata.name == held)
    assert "Cannot evict pod" in await bed.drain(node, code=1, patience_seconds=6)
    assert {zone: await uids(bed, zone) for zone in ("baz", "qux")} == {zone: before[zone] for zone in ("baz", "qux")}
    await bed.kubectl("uncordon", node)
    for zone in ("baz", "qux"):
        await apply(bed, ONE_ZONE.replace("- bar", f"- {zone}"))
        await eventually(lambda zone=zone: is_new(bed, zone, before[zone]), f"{zone} is new")


async def test_1_one_failure_domain_after_the_other_by_itself(bed: Bed, installed: Installed) -> None:
    old = await nine_pods(bed, "stateful set")
    await apply(bed, ONE_ZONE_AT_A_TIME)
    async with watching(bed, "foo", {}) as watcher:
        await bed.new_version(STATEFUL_SETS, "foo")
        await eventually(lambda: replaced(bed, old), "all pods are new")
    assert watcher.most_unavailable_zones == 1


async def test_2_update_across_failure_domains(bed: Bed, installed: Installed) -> None:
    old = await nine_pods(bed)
    await apply(bed, ONE_PER_ZONE)
    watcher = await roll_out(bed, old, dict.fromkeys(ZONES, 2))
    assert not watcher.violations
    assert min(watcher.lowest.values()) >= 2


async def test_2_two_drains_at_once(bed: Bed, installed: Installed) -> None:
    """Real `kubectl drain`: it waits for 429 and goes on."""
    await nine_pods(bed)
    await apply(bed, ONE_PER_ZONE)
    async with watching(bed, "foo", dict.fromkeys(ZONES, 2)) as watcher:
        nodes = [bed.node("baz", 0), bed.node("baz", 1), bed.node("qux", 0)]
        await asyncio.gather(*(bed.drain(node) for node in nodes))
        await bed.until_ready("foo", 9)
    assert not watcher.violations
    assert not {pod.spec.node_name for pod in await bed.pods("foo")} & set(nodes)
    await bed.kubectl("uncordon", *nodes)


async def test_3_update_with_an_overall_budget(bed: Bed, installed: Installed) -> None:
    old = await nine_pods(bed)
    await apply(bed, ONE_OF_ALL)
    watcher = await roll_out(bed, old, {EVERYWHERE: 8})
    assert not watcher.violations
    assert watcher.lowest[EVERYWHERE] >= 8, "9 where every successor was ready before its turn came"


async def test_4_scale_down_keeps_the_spread(bed: Bed, installed: Installed) -> None:
    await nine_pods(bed)
    await apply(bed, ONE_PER_ZONE)
    async with watching(bed, "foo", dict.fromkeys(ZONES, 1)) as watcher:
        await bed.scale(DEPLOYMENTS, "foo", 6)
        await bed.until_ready("foo", 6)
    assert await bed.ready_by_zone("foo") == dict.fromkeys(ZONES, 2)
    assert not watcher.violations
    freeze = MergePatch({"spec": {"maxUnavailable": 0}})
    await bed.client.patch(BUDGETS, "app-pdb", freeze, bed.namespace)
