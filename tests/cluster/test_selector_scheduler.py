"""Our reading of node selectors against the real scheduler's: random terms, odd labels, one pod per selector and node.

A pod is pinned to one node by its plain nodeSelector and tolerates everything, so whether the scheduler binds it there
depends on its node affinity alone. What the API server refuses, we must refuse; what it lets through, we must read as
the scheduler does.
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


def some_values(chance: random.Random, operator: str) -> list[str]:
    match operator:
        case "Exists" | "DoesNotExist":
            count = chance.choice([0, 0, 0, 0, 0, 0, 1])
        case "Gt" | "Lt":
            count = chance.choice([1, 1, 1, 1, 1, 1, 0, 2])
        case _:
            count = chance.choice([1, 1, 1, 2, 2, 3, 0])
    return [chance.choice(BAD_VALUES) if chance.random() < 0.02 else chance.choice(VALUES) for _ in range(count)]


def some_requirement(chance: random.Random) -> dict[str, Any]:
    operator = "Equals" if chance.random() < 0.02 else chance.choice(OPERATORS)
    key = chance.choice(BAD_KEYS) if chance.random() < 0.02 else chance.choice(KEYS)
    return {"key": key, "operator": operator, "values": some_values(chance, operator)}


def some_field(chance: random.Random, names: list[str]) -> dict[str, Any]:
    operator = chance.choice(["In", "In", "NotIn", "NotIn", "NotIn", "Exists" if chance.random() < 0.2 else "In"])
    key = "metadata.uid" if chance.random() < 0.03 else "metadata.name"
    return {"key": key, "operator": operator, "values": chance.choices(names, k=2 if chance.random() < 0.05 else 1)}


def some_selector(chance: random.Random, names: list[str]) -> dict[str, Any]:
    terms = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        term: dict[str, Any] = {}
        if expressions := [some_requirement(chance) for _ in range(chance.choice([0, 1, 1, 1, 2, 3]))]:
            term["matchExpressions"] = expressions
        if fields := [some_field(chance, names) for _ in range(chance.choice([0, 0, 0, 0, 1, 2]))]:
            term["matchFields"] = fields
        terms.append(term)
    return {"nodeSelectorTerms": terms}


def pod(name: str, pin: str, selector: dict[str, Any]) -> dict[str, Any]:
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
    run = uuid.uuid4().hex[:8]
    made: dict[str, dict[str, str]] = {}
    for index, labels in enumerate(LABELS):
        name = f"{run}-n{index}.example"
        made[name] = {**labels, PIN: name}
        status = {"allocatable": {"cpu": "1000", "memory": "1Ti", "pods": "1000"}}
        await client.create(NODES, {"metadata": {"name": name, "labels": made[name]}, "status": status})
    yield made
    await client.delete_collection(PODS, namespace, grace_seconds=0)
    for name in made:
        await client.delete(NODES, name)


async def in_parallel(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    limit = asyncio.Semaphore(20)

    async def one(call: Awaitable[Any]) -> Any:
        async with limit:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))


async def refusal(call: Awaitable[Any]) -> ApiError | None:
    try:
        await call
    except (Invalid, BadRequest) as error:
        return error
    return None


def verdict(seen: Pod) -> str:
    """The node it was bound to, "nowhere", or "" while undecided."""
    if seen.spec.node_name:
        return seen.spec.node_name
    conditions = {condition.type: condition for condition in seen.status.conditions}
    return "nowhere" if "PodScheduled" in conditions and conditions["PodScheduled"].status == "False" else ""


async def verdicts(client: Client, namespace: str) -> dict[str, str]:
    async with asyncio.timeout(180):
        while True:
            listing = await client.list(PODS, namespace)
            found = {seen.metadata.name: verdict(seen) for seen in listing.items}
            if all(found.values()):
                return found
            await asyncio.sleep(0.5)


async def test_the_scheduler_agrees(client: Client, namespace: str, nodes: dict[str, dict[str, str]]) -> None:
    chance = random.Random(SEED)
    names = list(nodes)
    tries = [(f"p{index}", chance.choice(names), some_selector(chance, names)) for index in range(SELECTORS)]
    answers = await in_parallel(refusal(client.create(PODS, pod(*one), namespace)) for one in tries)
    bound = await verdicts(client, namespace)

    disagreements = []
    for (name, node, written), refused in zip(tries, answers, strict=True):
        selector = NodeSelector.parse_as_scheduler(written)
        beyond = [problem for problem in selector.problems if "is not an integer" not in problem]
        if bool(beyond) is not bool(refused):
            disagreements.append(("refused", written, str(refused), selector.problems))
        elif not refused and bound[name] != (node if selector.matches(nodes[node], node) else "nowhere"):
            disagreements.append(("bound", written, nodes[node], bound[name]))
    assert not disagreements
    outcomes = ["refused" if refused else bound[name] for (name, _, _), refused in zip(tries, answers, strict=True)]
    assert outcomes.count("refused") > 20
    assert outcomes.count("nowhere") > 60
    assert len(set(outcomes)) == len(nodes) + 2, "every node was chosen at least once"


async def test_the_scheduler_ignores_terms_it_cannot_read(
    client: Client, namespace: str, nodes: dict[str, dict[str, str]]
) -> None:
    """The API server lets a Gt with a word through; the term then matches nothing, its neighbours still count."""
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
        await client.create(PODS, pod(name, node, selector), namespace)
        matched = NodeSelector.parse_as_scheduler(selector).matches(nodes[node], node)
        assert matched is (cases[name][1] == node)
    assert await verdicts(client, namespace) == {name: where for name, (_, where) in cases.items()}
