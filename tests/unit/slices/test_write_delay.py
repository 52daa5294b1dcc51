"""What may wait for company before it is written, and what may not."""

from dataclasses import dataclass

import pytest

from unit.slices.build import World, pod, pods_in, service, zones
from zonewise.objects import Pod, Service
from zonewise.slices.decide.write_delay import can_wait

READY = pod("ready", "10.0.0.1")
COMING = pod("coming", "10.0.0.2", ready=False)
GOING = pod("going", "10.0.0.3", terminating=True)


@dataclass(frozen=True)
class Case:
    before: list[Pod]
    after: list[Pod]
    waits: bool
    asked: Service = service()  # noqa: RUF009 - a frozen value


CASES = {
    "a pod has an address but is not ready": Case([READY], [READY, COMING], waits=True),
    "a pod that terminated is gone": Case([READY, GOING], [READY], waits=True),
    "a pod that was never ready is gone": Case([READY, COMING], [READY], waits=True),
    "a pod becomes ready": Case([READY, COMING], [READY, pod("coming", "10.0.0.2")], waits=False),
    "a pod begins to terminate": Case([READY, pod("going", "10.0.0.3")], [READY, GOING], waits=False),
    "a ready pod is gone": Case([READY, pod("other", "10.0.0.4")], [READY], waits=False),
    "a ready pod gets another address": Case([READY], [pod("ready", "10.0.0.9")], waits=False),
    "the last to serve is gone": Case([GOING, COMING], [COMING], waits=False),
    "nobody is ready": Case([COMING], [COMING, pod("two", "10.0.0.5", ready=False)], waits=False),
    "the first slice": Case([], [READY], waits=False),
    "nothing to write": Case([READY], [READY], waits=False),
    "a label of the Service": Case([READY], [READY], waits=False, asked=service(labels={"team": "a"})),
    "Local traffic from inside": Case(
        [READY, GOING], [READY], waits=False, asked=service(internal_traffic_policy="Local")
    ),
    "Local traffic from outside": Case(
        [READY, GOING], [READY], waits=False, asked=service(external_traffic_policy="Local")
    ),
    "addresses that are published before they are ready": Case(
        [READY], [READY, COMING], waits=False, asked=service(publish_not_ready_addresses=True)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_waits(case: Case) -> None:
    world = World(zones("a", "b"))
    if case.before:
        world.sync(service(publish_not_ready_addresses=case.asked.spec.publish_not_ready_addresses), case.before)
    assert can_wait(case.asked, world.plan(case.asked, case.after)) is case.waits


def test_what_moves_other_endpoints_does_not_wait() -> None:
    """A hard rule is asked for: slices are grouped, hints change."""
    world = World(zones("a", "b"))
    pods = pods_in({"a": 3, "b": 3})
    world.sync(service(), pods)
    asked = service({"endpointslice.kubernetes.io/same-zone": "Require"})
    assert not can_wait(asked, world.plan(asked, pods))
