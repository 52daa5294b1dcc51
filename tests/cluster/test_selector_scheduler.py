"""Node selectors compared with the real scheduler: random terms, odd labels, one pod per selector and node.

A pod is pinned to one node by its plain nodeSelector and tolerates everything, so whether the scheduler binds it there
depends on its node affinity alone. Selectors that the API server rejects must be rejected; all others must match as in
the scheduler.
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

import pytest

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, BadRequest, Invalid
from zonewise.objects import NODES, PODS, Pod
from zonewise.topology import NodeSelector

SEED = 20261116
SELECTORS = 300
PIN = "zonewise.dev/test-pin"
OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

LABELS: list[dict[str, str]] = [
    {},
    {"zone": "a", "cores": "8", "example.com/rack": "r1"},
    {"zone": "b", "cores": "16", "word": "eight"},
    {"zone": "", "cores": "", "example.com/rack": ""},
    {"zone": "a", "cores": "007", "word": "0"},
    {"zone": "0", "cores": "9223372036854775807"},
    {"zone": "b", "cores": "9223372036854775808", "failure-domain.beta.kubernetes.io/zone": "a"},
    {"topology.kubernetes.io/zone": "a", "cores": "1.5", "word": "x" * 63},
]
KEYS = ["zone", "cores", "word", "example.com/rack", "topology.kubernetes.io/zone", "absent"]
VALUES = ["a", "b", "", "0", "7", "8", "16", "eight", "9223372036854775807", "9223372036854775808", "1_0", "x" * 63]
BAD_KEYS = ["", "-", "Example.com/rack", "a/b/c", "x" * 64]
BAD_VALUES = ["-1", "+8", "a b", "x" * 64]


def random_values(rng: random.Random, operator: str) -> list[str]:
    match operator:
        case "Exists" | "DoesNotExist":
            count = rng.choice([0, 0, 0, 0, 0, 0, 1])
        case "Gt" | "Lt":
            count = rng.choice([1, 1, 1, 1, 1, 1, 0, 2])
        case _:
            count = rng.choice([1, 1, 1, 2, 2, 3, 0])
    return [rng.choice(BAD_VALUES) if rng.random() < 0.02 else rng.choice(VALUES) for _ in range(count)]


def random_requirement(rng: random.Random) -> dict[str, Any]:
    operator = "Equals" if rng.random() < 0.02 else rng.choice(OPERATORS)
    key = rng.choice(BAD_KEYS) if rng.random() < 0.02 else rng.choice(KEYS)
    return {"key": key, "operator": operator, "values": random_values(rng, operator)}


def random_field(rng: random.Random, names: list[str]) -> dict[str, Any]:
    operator = rng.choice(["In", "In", "NotIn", "NotIn", "NotIn", "Exists" if rng.random() < 0.2 else "In"])
    key = "metadata.uid" if rng.random() < 0.03 else "metadata.name"
    return {"key": key, "operator": operator, "values": rng.choices(names, k=2 if rng.random() < 0.05 else 1)}


def random_selector(rng: random.Random, names: list[str]) -> dict[str, Any]:
    terms = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        term: dict[str, Any] = {}
        if expressions := [random_requirement(rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]:
            term["matchExpressions"] = expressions
        if fields := [random_field(rng, names) for _ in range(rng.choice([0, 0, 0, 0, 1, 2]))]:
            term["matchFields"] = fields
        terms.append(term)
    return {"nodeSelectorTerms": terms}


def pod_manifest(name: str, pin: str, selector: dict[str, Any]) -> dict[str, Any]:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    return {
        "metadata": {"name": name, "labels": {"pin": pin}},
        "spec": {
            "nodeSelector": {PIN: pin},
            "affinity": affinity,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none"}],
        },
    }


@pytest.fixture
async def nodes(client: Client, namespace: str) -> AsyncIterator[dict[str, dict[str, str]]]:
    """Labels by node name."""
    prefix = uuid.uuid4().hex[:8]
    labels_by_node: dict[str, dict[str, str]] = {}
    for index, labels in enumerate(LABELS):
        name = f"{prefix}-n{index}.example"
        labels_by_node[name] = {**labels, PIN: name}
        status = {"allocatable": {"cpu": "1000", "memory": "1Ti", "pods": "1000"}}
        await client.create(NODES, {"metadata": {"name": name, "labels": labels_by_node[name]}, "status": status})
    yield labels_by_node
    await client.delete_collection(PODS, namespace, grace_seconds=0)
    for name in labels_by_node:
        await client.delete(NODES, name)


async def in_parallel(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    limit = asyncio.Semaphore(20)

    async def run(call: Awaitable[Any]) -> Any:
        async with limit:
            return await call

    return await asyncio.gather(*(run(call) for call in calls))


async def refusal(call: Awaitable[Any]) -> ApiError | None:
    try:
        await call
    except (Invalid, BadRequest) as error:
        return error
    return None


def verdict(pod: Pod) -> str:
    """Node of the pod, "nowhere" if unschedulable, or "" while undecided."""
    if pod.spec.node_name:
        return pod.spec.node_name
    conditions = {condition.type: condition for condition in pod.status.conditions}
    return "nowhere" if "PodScheduled" in conditions and conditions["PodScheduled"].status == "False" else ""


async def verdicts(client: Client, namespace: str) -> dict[str, str]:
    async with asyncio.timeout(180):
        while True:
            listing = await client.list(PODS, namespace)
            by_name = {pod.metadata.name: verdict(pod) for pod in listing.items}
            if all(by_name.values()):
                return by_name
            await asyncio.sleep(0.5)


async def test_node_selectors_agree_with_the_scheduler(
    client: Client, namespace: str, nodes: dict[str, dict[str, str]]
) -> None:
    rng = random.Random(SEED)
    names = list(nodes)
    cases = [(f"p{index}", rng.choice(names), random_selector(rng, names)) for index in range(SELECTORS)]
    refusals = await in_parallel(refusal(client.create(PODS, pod_manifest(*case), namespace)) for case in cases)
    bound = await verdicts(client, namespace)

    disagreements = []
    for (name, node, spec), refused in zip(cases, refusals, strict=True):
        selector = NodeSelector.parse_as_scheduler(spec)
        rejected_by_us = [problem for problem in selector.problems if "is not an integer" not in problem]
        if bool(rejected_by_us) is not bool(refused):
            disagreements.append(("refused", spec, str(refused), selector.problems))
        elif not refused and bound[name] != (node if selector.matches(nodes[node], node) else "nowhere"):
            disagreements.append(("bound", spec, nodes[node], bound[name]))
    assert not disagreements
    outcomes = ["refused" if refused else bound[name] for (name, _, _), refused in zip(cases, refusals, strict=True)]
    assert outcomes.count("refused") > 20
    assert outcomes.count("nowhere") > 60
    assert len(set(outcomes)) == len(nodes) + 2, "every node was chosen at least once"


async def test_unparsable_terms_match_nothing_like_in_the_scheduler(
    client: Client, namespace: str, nodes: dict[str, dict[str, str]]
) -> None:
    """The API server accepts Gt with a word; that term matches nothing, the other terms still count."""
    node = next(iter(nodes))
    unreadable = {"matchExpressions": [{"key": PIN, "operator": "Gt", "values": ["many"]}]}
    readable = {"matchExpressions": [{"key": PIN, "operator": "Exists"}]}
    cases = {
        "alone": ([unreadable], "nowhere"),
        "beside": ([unreadable, readable], node),
        "empty": ([{}], "nowhere"),
        "empty-beside": ([{}, readable], node),
    }
    for name, (terms, _) in cases.items():
        selector = {"nodeSelectorTerms": terms}
        await client.create(PODS, pod_manifest(name, node, selector), namespace)
        matched = NodeSelector.parse_as_scheduler(selector).matches(nodes[node], node)
        assert matched is (cases[name][1] == node)
    assert await verdicts(client, namespace) == {name: outcome for name, (_, outcome) in cases.items()}
