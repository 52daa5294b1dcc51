"""Random changes, one transaction each: what the kernel then has is what saying everything at once would give it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client import REGISTRY

from network.proxy.conftest import Node
from network.proxy.node import Bed
from unit.proxy.build import cluster, endpoint
from zonewise.objects import Key
from zonewise.proxy.decide.targets import NodePlace
from zonewise.proxy.nft_socket import NftRefusedError
from zonewise.proxy.wire import netlink
from zonewise.proxy.wire.family import IPV4
from zonewise.proxy.wire.layout import TABLE, FixedLayout

STEPS = 150


def _some(chance: random.Random, likely: float, spec: dict[str, Any]) -> dict[str, Any]:
    return spec if chance.random() < likely else {}


def _spec(chance: random.Random, number: int) -> dict[str, Any]:
    """Few addresses and ports, so that Services quarrel about them."""
    timeout = {"clientIP": {"timeoutSeconds": chance.choice([10, 600])}}
    outward = {
        "type": "LoadBalancer",
        "vips": [f"10.97.0.{chance.randrange(3)}"],
        "externalIPs": [f"10.98.0.{chance.randrange(2)}"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30000 + chance.randrange(4)}],
    }
    return {
        "clusterIP": f"10.96.0.{number}",
        **_some(chance, 0.5, outward),
        **_some(chance, 0.4, {"sessionAffinity": "ClientIP", "sessionAffinityConfig": timeout}),
        **_some(chance, 0.4, {"externalTrafficPolicy": "Local"}),
        **_some(chance, 0.4, {"internalTrafficPolicy": "Local"}),
        **_some(chance, 0.4, {"loadBalancerSourceRanges": ["10.0.0.0/8"]}),
    }


def _kernel_has(node: Node) -> dict[str, Any]:
    kernel = node.kernel
    chains = {name for name in kernel.chains(IPV4) if name.startswith(("fw-", "s-", "e-"))}
    sets = kernel.sets(IPV4)
    return {"chains": chains, "sets": sets, **{name: kernel.elements(IPV4, name) for name in sets}}


@pytest.mark.parametrize("seed", [1, 2])
def test_changes_add_up_to_the_whole(bed: Bed, node: Node, seed: int) -> None:
    chance = random.Random(seed)
    for step in range(STEPS):
        number = chance.randrange(6)
        if chance.random() < 0.25:
            gone = node.decider.decide(Key("shop", f"s{number}"), None, [], NodePlace("a1", cluster()))
            node.plane.apply(gone)
        else:
            places = chance.sample(range(9), chance.randrange(5))
            endpoints = [endpoint(f"10.1.0.{place}", chance.choice(["a1", "b1"])) for place in places]
            node.serve(endpoints, f"s{number}", **_spec(chance, number))
        if step % 10 == 0:
            changed = _kernel_has(node)
            node.plane.repair()
            assert _kernel_has(node) == changed, f"after {step} changes"
    assert node.plane.contests(), "the seeds make Services quarrel"
    assert bed.nft("list", "ruleset")
    assert set(FixedLayout) <= node.kernel.sets(IPV4)


def test_a_refused_transaction_changes_nothing_and_is_counted(bed: Bed, node: Node) -> None:
    """Whatever stood before the message that the kernel does not like; then everything is said again, in one."""
    node.serve([endpoint("10.1.0.1"), endpoint("10.1.0.2")])
    before = _kernel_has(node)
    good = netlink.add_elements(IPV4.number, TABLE, FixedLayout.CLUSTER_IPS, {IPV4.pack("10.96.9.9"): None})
    bad = netlink.delete_elements(IPV4.number, TABLE, FixedLayout.CLUSTER_IPS, [IPV4.pack("10.96.8.8")])
    with pytest.raises(NftRefusedError, match="delete elements"):
        node.kernel.commit([*good, *bad])
    assert _kernel_has(node) == before
    bed.nft("flush", "map", "ip", "zonewise", "ep")
    refusals = _refusals()
    node.serve([endpoint("10.1.0.3")])
    assert _refusals() == refusals + 1
    assert len(node.kernel.elements(IPV4, FixedLayout.ENDPOINTS)) == 1, "repaired at once, and what was asked is done"


def _refusals() -> float:
    return REGISTRY.get_sample_value("zonewise_proxy_refusals_total", {"family": "IPv4"}) or 0.0
