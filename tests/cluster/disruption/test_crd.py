"""CRD validation on a real API server: the published stories are accepted, bad specs are denied with advice."""

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from support.waiting import eventually
from zonewise.disruption.decide.allowance import DomainCount, DomainFill, compute_allowance
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey, BudgetError
from zonewise.disruption.decide.count import Departure, PodCount
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry, ledger_of
from zonewise.disruption.decide.status import document, published, read
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Conflict, Invalid, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS, TopologyDisruptionBudget
from zonewise.topology import ZONE

MANIFEST = Path(__file__).parents[3] / "deploy" / "tdb.yaml"
KIND = {"apiVersion": "zonewise.dev/v1alpha1", "kind": "TopologyDisruptionBudget"}

BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
STORIES = f"""
spec:
  maxUnavailable: 0
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      # Only allow evicting/updating pods in zone “bar”
      matchExpressions:
      - key: {BETA_ZONE}
        operator: NotIn
        values:
        - bar
      - key: {BETA_ZONE}
        operator: Exists
---
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      # Only allow 1 pod to be evicted/updated per zone
      matchExpressions:
      - key: {BETA_ZONE}
        operator: Exists
---
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: foo
"""
"""Stories 1 to 3 from `spec` on; the fourth has the YAML of the third."""


@pytest.fixture
async def crd(cluster: ControlPlane, client: Client, namespace: str) -> str:
    """Namespace in a cluster with the CRD installed."""
    await asyncio.to_thread(kubectl, cluster, "apply", "--server-side", "-f", str(MANIFEST))

    async def is_served() -> bool:
        try:
            await client.list(TOPOLOGY_DISRUPTION_BUDGETS, namespace)
        except NotFound:
            return False
        return True

    await eventually(is_served, "budgets are served")
    return namespace


def kubectl(cluster: ControlPlane, *arguments: str, stdin: str = "") -> str:
    command = [str(cluster.binaries / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


async def test_published_stories_are_accepted_verbatim(cluster: ControlPlane, client: Client, crd: str) -> None:
    documents = [
        {**KIND, "metadata": {"name": f"story-{number}"}, **manifest}
        for number, manifest in enumerate(yaml.safe_load_all(STORIES), 1)
    ]
    stdin = yaml.safe_dump_all(documents)
    await asyncio.to_thread(kubectl, cluster, "-n", crd, "create", "--validate=strict", "-f", "-", stdin=stdin)
    budgets = {budget.metadata.name: budget for budget in (await client.list(TOPOLOGY_DISRUPTION_BUDGETS, crd)).items}
    only_bar, across, overall = (Budget.parse(budgets[f"story-{number}"]) for number in (1, 2, 3))
    foo, bar = ({ZONE: name} for name in ("foo", "bar"))
    assert (only_bar.domain_key(foo), only_bar.frozen) == (BudgetDomainKey("foo", covered=True), True)
    assert not only_bar.domain_key(bar).covered
    assert [across.domain_key(node) for node in (foo, bar)] == [
        BudgetDomainKey("foo", covered=True),
        BudgetDomainKey("bar", covered=True),
    ]
    assert {overall.domain_key(node) for node in (foo, bar)} == {BudgetDomainKey("all", covered=True)}
    spec = budgets["story-1"].spec
    assert (spec.enforcement, spec.apply_to) == ("Enforce", ("Evictions", "ControllerDeletes"))


def term(*expressions: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerm": {"matchExpressions": list(expressions)}}


def zone(operator: str, *values: str) -> dict[str, Any]:
    return {"key": ZONE, "operator": operator} | ({"values": list(values)} if values else {})


MINIMAL = {"selector": {}, "maxUnavailable": 1}
BAD_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "no limit": ({"selector": {}}, "write either minAvailable or maxUnavailable, exactly one of them"),
    "both limits": ({**MINIMAL, "minAvailable": 1}, "write either minAvailable or maxUnavailable, exactly one of them"),
    "below zero": (
        {"selector": {}, "maxUnavailable": -1},
        "write a number of pods such as 1, or a percentage in quotes",
    ),
    "number as text": ({"selector": {}, "maxUnavailable": "1"}, "write a number of pods such as 1"),
    "too many percent": ({"selector": {}, "minAvailable": "101%"}, 'such as "75%", at most "100%"'),
    "half a percent": ({"selector": {}, "minAvailable": "2.5%"}, "write a number of pods such as 2"),
    "no domains to count": (
        {**MINIMAL, "maxDisruptedDomains": 1},
        "maxDisruptedDomains needs domains to count; write a node",
    ),
    "no domain at all": (
        {**MINIMAL, "domainKeys": [ZONE], "maxDisruptedDomains": 0},
        "write 1 or more; to allow no disruption at all write maxUnavailable: 0",
    ),
    "unknown policy": (
        {**MINIMAL, "unhealthyPodEvictionPolicy": "Never"},
        'supported values: "IfHealthyBudget", "AlwaysAllow"',
    ),
    "unknown enforcement": ({**MINIMAL, "enforcement": "Warn"}, 'supported values: "Enforce", "DryRun", "Off"'),
    "unknown reach": (
        {**MINIMAL, "applyTo": ["Drains"]},
        'supported values: "Evictions", "ControllerDeletes", "Deletes"',
    ),
    "In without values": (
        {**MINIMAL, **term(zone("In"))},
        "In and NotIn need at least one value; write them under values",
    ),
    "Exists with values": (
        {**MINIMAL, **term(zone("Exists", "a"))},
        "Exists and DoesNotExist take no values; remove them",
    ),
    "Gt of a word": (
        {**MINIMAL, **term(zone("Gt", "a"))},
        "Gt and Lt need exactly one value, an integer; write it as text",
    ),
    "unknown operator": ({**MINIMAL, **term(zone("Is", "a"))}, 'supported values: "In", "NotIn", "Exists"'),
    "not a label key": (
        {**MINIMAL, **term({"key": "Zone/", "operator": "Exists"})},
        "write one such as topology.kubernetes.io/",
    ),
    "not a label value": (
        {**MINIMAL, **term(zone("In", "a b"))},
        "every value must be a label value; write at most 63",
    ),
    "not a domain key": ({**MINIMAL, "domainKeys": ["-"]}, "every key must be a label key of nodes; write one such as"),
    "not a node's field": (
        {**MINIMAL, "nodeSelectorTerm": {"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}},
        "nodes can be selected by one field only; write metadata.name as the key",
    ),
    "two node names": (
        {
            **MINIMAL,
            "nodeSelectorTerm": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]},
        },
        "write exactly one node name under values",
    ),
    "selector with Gt": (
        {**MINIMAL, "selector": {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}},
        'supported values: "In", "NotIn", "Exists", "DoesNotExist"',
    ),
    "selector's key": (
        {**MINIMAL, "selector": {"matchLabels": {"a/b/c": "x"}}},
        "every key must be a label key; write one",
    ),
    "selector's value": (
        {**MINIMAL, "selector": {"matchLabels": {"app": "-"}}},
        "every value must be a label value; write",
    ),
}
ONLY_REFUSED_AT_ADMISSION: dict[str, tuple[dict[str, Any], str]] = {
    "no selector": ({"maxUnavailable": 1}, "write a selector; {} selects every pod of the namespace"),
    "no reach": ({**MINIMAL, "applyTo": []}, "to switch the budget off write enforcement: Off"),
    "a key twice": ({**MINIMAL, "domainKeys": [ZONE, ZONE]}, "Duplicate value"),
}


async def test_bad_specs_are_denied_with_advice(client: Client, crd: str) -> None:
    """All cases in one test: a fixture per case would cost more than the cases."""
    for case, (spec, sentence) in {**BAD_SPECS, **ONLY_REFUSED_AT_ADMISSION}.items():
        body = {"metadata": {"name": "bad"}, "spec": spec}
        with pytest.raises(Invalid) as refused:
            await client.create(TOPOLOGY_DISRUPTION_BUDGETS, body, crd, dry_run=True)
        assert sentence in str(refused.value), case


@pytest.mark.parametrize("spec", [spec for spec, _ in BAD_SPECS.values()], ids=BAD_SPECS)
def test_parser_rejects_what_admission_rejects(spec: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match=r"write|needs|remove"):
        Budget.parse(msgspec.convert({"spec": spec}, TopologyDisruptionBudget))


async def test_status_round_trips_and_conflicts_on_stale_version(
    cluster: ControlPlane, client: Client, crd: str
) -> None:
    spec = {**MINIMAL, **term(zone("Exists")), "maxDisruptedDomains": 2}
    created = await client.create(TOPOLOGY_DISRUPTION_BUDGETS, {"metadata": {"name": "web"}, "spec": spec}, crd)
    budget = Budget.parse(created)
    tally = DomainCount(
        expected=9,
        uncovered=1,
        domains={"a": DomainFill(3, 3), "b": DomainFill(4, 2)},
        surplus={"web": 1},
        outside={"": 1},
    )
    departures = (
        Departure("web", BudgetDomainKey("b", covered=True), 1, 4),
        Departure("web", BudgetDomainKey("", covered=False), 1, 2),
    )
    now = "2026-11-16T06:00:00Z"
    ledger = ledger_of(
        [LedgerEntry(uid="u", name="b-0", domain="b", owner="web", time=now, source=ChargeSource.ROLLOUT)]
    )
    status = published(budget, PodCount(compute_allowance(budget, tally), {}, departures), ledger, (), now)
    version = {"resourceVersion": created.metadata.resource_version}
    patch = MergePatch({"metadata": version, "status": document(status)})
    patched = await client.patch(TOPOLOGY_DISRUPTION_BUDGETS, "web", patch, crd, subresource="status")
    assert read(budget, patched) == status
    with pytest.raises(Conflict):
        await client.patch(TOPOLOGY_DISRUPTION_BUDGETS, "web", patch, crd, subresource="status")
    shown = await asyncio.to_thread(kubectl, cluster, "-n", crd, "get", "tdb")
    heading, row = shown.splitlines()
    assert heading.split("  ")[0] == "NAME"
    assert "MAX UNAVAILABLE" in heading
    assert "a=1 b=0" in row
