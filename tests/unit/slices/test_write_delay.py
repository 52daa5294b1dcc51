"""Plans that can wait to be batched, and plans that cannot."""

from dataclasses import dataclass

import pytest

from unit.slices.build import SliceStore, pod, pods_in, service, zones
from zonewise.objects import Pod, Service
from zonewise.slices.decide.write_delay import can_wait

READY = pod("ready", "10.0.0.1")
UNREADY = pod("coming", "10.0.0.2", ready=False)
TERMINATING = pod("going", "10.0.0.3", terminating=True)


@dataclass(frozen=True)
class Case:
    before: list[Pod]
    after: list[Pod]
    waits: bool
    svc: Service = service()  # noqa: RUF009 - a frozen value


CASES = {
    "a pod has an address but is not ready": Case([READY], [READY, UNREADY], waits=True),
    "a pod that terminated is gone": Case([READY, TERMINATING], [READY], waits=True),
    "a pod that was never ready is gone": Case([READY, UNREADY], [READY], waits=True),
    "a pod becomes ready": Case([READY, UNREADY], [READY, pod("coming", "10.0.0.2")], waits=False),
    "a pod begins to terminate": Case([READY, pod("going", "10.0.0.3")], [READY, TERMINATING], waits=False),
    "a ready pod is gone": Case([READY, pod("other", "10.0.0.4")], [READY], waits=False),
    "a ready pod gets another address": Case([READY], [pod("ready", "10.0.0.9")], waits=False),
    "the last to serve is gone": Case([TERMINATING, UNREADY], [UNREADY], waits=False),
    "no pod is ready": Case([UNREADY], [UNREADY, pod("two", "10.0.0.5", ready=False)], waits=False),
    "the first slice": Case([], [READY], waits=False),
    "nothing to write": Case([READY], [READY], waits=False),
    "a label of the Service": Case([READY], [READY], waits=False, svc=service(labels={"team": "a"})),
    "Local traffic from inside": Case(
        [READY, TERMINATING], [READY], waits=False, svc=service(internal_traffic_policy="Local")
    ),
    "Local traffic from outside": Case(
        [READY, TERMINATING], [READY], waits=False, svc=service(external_traffic_policy="Local")
    ),
    "addresses that are published before they are ready": Case(
        [READY], [READY, UNREADY], waits=False, svc=service(publish_not_ready_addresses=True)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_can_wait(case: Case) -> None:
    store = SliceStore(zones("a", "b"))
    if case.before:
        store.sync(service(publish_not_ready_addresses=case.svc.spec.publish_not_ready_addresses), case.before)
    assert can_wait(case.svc, store.plan(case.svc, case.after)) is case.waits


def test_plan_that_moves_endpoints_does_not_wait() -> None:
    """A hard policy is added: slices are grouped, hints change."""
    store = SliceStore(zones("a", "b"))
    pods = pods_in({"a": 3, "b": 3})
    store.sync(service(), pods)
    svc = service({"endpointslice.kubernetes.io/same-zone": "Require"})
    assert not can_wait(svc, store.plan(svc, pods))
