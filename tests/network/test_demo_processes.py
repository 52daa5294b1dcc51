"""The demo and Zonewise on namespace nodes, where pods are processes of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from zonewise.lab import labs
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.demo import zone_answers
from zonewise.lab.nodes import nodes, sandbox
from zonewise.lab.state import Lab, LabOptions

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def demo() -> Iterator[Lab]:
    name = f"test-{os.getpid()}-demo"
    options = LabOptions(zones=zone_names(3), nodes_per_zone=1, kube_proxy=True, demo=True, zonewise=True)
    try:
        yield labs.up(name, options, lambda _step: None)
    finally:
        labs.down(name, lambda _step: None)


@pytest.mark.parametrize("by_name", [False, True])
def test_fronts_are_answered_through_service_and_name(demo: Lab, by_name: bool) -> None:
    assert zone_answers.complete(zone_answers.ask(demo, 5, by_name=by_name))


def test_pods_use_their_service_account_tokens(demo: Lab) -> None:
    """No pod uses the admin kubeconfig of the lab's own components."""
    users = set()
    for node in nodes.plan_of(demo).nodes:
        for path in sandbox.pods_directory(demo.directory, node.name).glob("*/kubeconfig"):
            (user,) = json.loads(path.read_bytes())["users"]
            users.add(tuple(user["user"]))
    assert users == {("token",)}
