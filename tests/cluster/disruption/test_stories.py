"""The four user stories on a real control plane: first with stock controllers only, then with Zonewise.

Zone bar has one node, the others have three: stock controllers delete pods of full nodes first, so bar loses all pods.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.disruption import cluster
from support.disruption.cluster import BUDGETS, DEPLOYMENTS, STATEFUL_SETS, STOCK_BUDGETS, DisruptionNamespace
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
async def ns(disruption_plane: ControlPlane, disruption_folder: Path) -> AsyncIterator[DisruptionNamespace]:
    async with cluster.disruption_namespace(disruption_plane, disruption_folder) as ns:
        await ns.make_nodes(("bar",), 1)
        await ns.make_nodes(("baz", "qux"), 3)
        yield ns


async def apply(ns: DisruptionNamespace, manifest: str) -> None:
    """`kubectl apply`, then wait for the published status."""
    path = ns.folder / f"{ns.namespace}.yaml"
    path.write_text(manifest)
    await ns.kubectl("apply", "-f", str(path))
    await eventually(lambda: is_published(ns), "budget status published")


async def is_published(ns: DisruptionNamespace) -> bool:
    budget = await ns.client.get(BUDGETS, "app-pdb", ns.namespace)
    return bool(budget.get("status", {}).get("observedGeneration") == budget["metadata"]["generation"])


async def uids(ns: DisruptionNamespace, zone: str) -> set[str]:
    zones = await ns.zone_of_nodes()
    return {pod.metadata.uid for pod in await ns.pods("foo") if zones.get(pod.spec.node_name) == zone}


async def replaced(ns: DisruptionNamespace, old: set[str], count: int = 9) -> bool:
    pods = [pod for pod in await ns.pods("foo") if cluster.is_available(pod)]
    return len(pods) == count and not old & {pod.metadata.uid for pod in pods}


async def is_new(ns: DisruptionNamespace, zone: str, old: set[str]) -> bool:
    return (await ns.ready_by_zone("foo"))[zone] == 3 and not old & await uids(ns, zone)


async def nine_pods(ns: DisruptionNamespace, kind: str = "deployment") -> set[str]:
    """Nine pods, three in each zone and per version of a Deployment; returns their uids."""
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    labels = {"labelSelector": {"matchLabels": {"app": "foo"}}}
    template = ns.template("foo")["spec"]["topologySpreadConstraints"]
    spread = [constraint | {"matchLabelKeys": ["pod-template-hash"]} for constraint in (*template, apart | labels)]
    if kind == "deployment":
        await ns.deployment(
            "foo", 9, strategy=THREE_AT_ONCE, pod_annotations=SLOW, pod_topologySpreadConstraints=spread
        )
    else:
        evict = {"zonewise.dev/update": "Evict"}
        update = "RollingUpdate" if kind == "stock stateful set" else "OnDelete"
        await ns.stateful_set("foo", 9, annotations=evict, update=update, pod_annotations=SLOW)
    return {pod.metadata.uid for pod in await ns.until_ready("foo", 9)}


async def roll_out(ns: DisruptionNamespace, old: set[str], floors: dict[str, int]) -> Watcher:
    """Roll out a new version of the Deployment, watching every pod event until all pods are new."""
    async with watching(ns, "foo", floors) as watcher:
        if EVERYWHERE in floors:
            watcher.zones = dict.fromkeys(watcher.zones, EVERYWHERE)
        await ns.new_version(DEPLOYMENTS, "foo")
        await eventually(lambda: replaced(ns, old), "all pods are new")
    return watcher


async def test_1_stock_updates_all_zones_in_any_order(ns: DisruptionNamespace) -> None:
    old = await nine_pods(ns, "stock stateful set")
    await ns.new_version(STATEFUL_SETS, "foo")
    await eventually(lambda: replaced(ns, old), "all pods are new")


async def test_2_stock_rollout_and_drain_empty_a_zone(ns: DisruptionNamespace) -> None:
    watcher = await roll_out(ns, await nine_pods(ns), dict.fromkeys(ZONES, 2))
    assert watcher.lowest["bar"] == 0
    assert watcher.violations
    await ns.budget(resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "foo"}}, maxUnavailable=3)
    await eventually(lambda: stock_allows(ns, 3), "the stock budget allows three")
    await ns.drain(ns.node("bar", 0))
    assert not await ns.in_zone("foo", "bar"), "a stock drain ignores zones"
    await ns.kubectl("uncordon", ns.node("bar", 0))


async def stock_allows(ns: DisruptionNamespace, pods: int) -> bool:
    budget = await ns.client.get(STOCK_BUDGETS, "budget", ns.namespace)
    return bool(budget.get("status", {}).get("disruptionsAllowed") == pods)


async def test_3_stock_budget_does_not_limit_a_rollout(ns: DisruptionNamespace) -> None:
    old = await nine_pods(ns)
    await ns.budget(resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "foo"}}, maxUnavailable=1)
    watcher = await roll_out(ns, old, {EVERYWHERE: 8})
    assert watcher.lowest[EVERYWHERE] <= 6


async def test_4_stock_scale_down_empties_a_zone(ns: DisruptionNamespace) -> None:
    await nine_pods(ns)
    await ns.scale(DEPLOYMENTS, "foo", 6)
    await ns.until_ready("foo", 6)
    assert await ns.ready_by_zone("foo") == {"baz": 3, "qux": 3}


async def test_1_update_by_failure_domain(ns: DisruptionNamespace, installed: Installed) -> None:
    """Zone by zone, as the owner edits the budget; a drain of another zone waits."""
    await nine_pods(ns, "stateful set")
    await apply(ns, ONE_ZONE)
    before = {zone: await uids(ns, zone) for zone in ZONES}
    await ns.new_version(STATEFUL_SETS, "foo")
    await eventually(lambda: is_new(ns, "bar", before["bar"]), "bar is updated")
    (frozen, *_) = await ns.in_zone("foo", "baz")
    node = next(pod.spec.node_name for pod in await ns.pods("foo") if pod.metadata.name == frozen)
    assert "Cannot evict pod" in await ns.drain(node, code=1, patience_seconds=6)
    assert {zone: await uids(ns, zone) for zone in ("baz", "qux")} == {zone: before[zone] for zone in ("baz", "qux")}
    await ns.kubectl("uncordon", node)
    for zone in ("baz", "qux"):
        await apply(ns, ONE_ZONE.replace("- bar", f"- {zone}"))
        await eventually(lambda zone=zone: is_new(ns, zone, before[zone]), f"{zone} is updated")


async def test_1_max_disrupted_domains_updates_one_domain_at_a_time(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    old = await nine_pods(ns, "stateful set")
    await apply(ns, ONE_ZONE_AT_A_TIME)
    async with watching(ns, "foo", {}) as watcher:
        await ns.new_version(STATEFUL_SETS, "foo")
        await eventually(lambda: replaced(ns, old), "all pods are new")
    assert watcher.most_unavailable_zones == 1


async def test_2_update_across_failure_domains(ns: DisruptionNamespace, installed: Installed) -> None:
    old = await nine_pods(ns)
    await apply(ns, ONE_PER_ZONE)
    watcher = await roll_out(ns, old, dict.fromkeys(ZONES, 2))
    assert not watcher.violations
    assert min(watcher.lowest.values()) >= 2


async def test_2_concurrent_drains_keep_the_budget(ns: DisruptionNamespace, installed: Installed) -> None:
    """Real `kubectl drain`: it retries on 429."""
    await nine_pods(ns)
    await apply(ns, ONE_PER_ZONE)
    async with watching(ns, "foo", dict.fromkeys(ZONES, 2)) as watcher:
        nodes = [ns.node("baz", 0), ns.node("baz", 1), ns.node("qux", 0)]
        await asyncio.gather(*(ns.drain(node) for node in nodes))
        await ns.until_ready("foo", 9)
    assert not watcher.violations
    assert not {pod.spec.node_name for pod in await ns.pods("foo")} & set(nodes)
    await ns.kubectl("uncordon", *nodes)


async def test_3_update_with_an_overall_budget(ns: DisruptionNamespace, installed: Installed) -> None:
    old = await nine_pods(ns)
    await apply(ns, ONE_OF_ALL)
    watcher = await roll_out(ns, old, {EVERYWHERE: 8})
    assert not watcher.violations
    assert watcher.lowest[EVERYWHERE] >= 8, "9 if every successor was ready in time"


async def test_4_scale_down_keeps_the_spread(ns: DisruptionNamespace, installed: Installed) -> None:
    await nine_pods(ns)
    await apply(ns, ONE_PER_ZONE)
    async with watching(ns, "foo", dict.fromkeys(ZONES, 1)) as watcher:
        await ns.scale(DEPLOYMENTS, "foo", 6)
        await ns.until_ready("foo", 6)
    assert await ns.ready_by_zone("foo") == dict.fromkeys(ZONES, 2)
    assert not watcher.violations
    freeze = MergePatch({"spec": {"maxUnavailable": 0}})
    await ns.client.patch(BUDGETS, "app-pdb", freeze, ns.namespace)
