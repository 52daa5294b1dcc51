"""Random changes, one transaction each: the kernel ends with the state that a full sync gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client import REGISTRY

from network.proxy.conftest import ProxyNode
from network.proxy.node import NodeNet
from unit.proxy.build import cluster, endpoint
from zonewise.objects import Key
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.nft_socket import NftRefusedError
from zonewise.proxy.wire import netlink
from zonewise.proxy.wire.family import IPV4
from zonewise.proxy.wire.layout import TABLE, FixedLayout

STEPS = 150


def _maybe(rng: random.Random, probability: float, spec: dict[str, Any]) -> dict[str, Any]:
    return spec if rng.random() < probability else {}


def _spec(rng: random.Random, number: int) -> dict[str, Any]:
    """Few addresses and ports, so that Services conflict."""
    timeout = {"clientIP": {"timeoutSeconds": rng.choice([10, 600])}}
    external = {
        "type": "LoadBalancer",
        "vips": [f"10.97.0.{rng.randrange(3)}"],
        "externalIPs": [f"10.98.0.{rng.randrange(2)}"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30000 + rng.randrange(4)}],
    }
    return {
        "clusterIP": f"10.96.0.{number}",
        **_maybe(rng, 0.5, external),
        **_maybe(rng, 0.4, {"sessionAffinity": "ClientIP", "sessionAffinityConfig": timeout}),
        **_maybe(rng, 0.4, {"externalTrafficPolicy": "Local"}),
        **_maybe(rng, 0.4, {"internalTrafficPolicy": "Local"}),
        **_maybe(rng, 0.4, {"loadBalancerSourceRanges": ["10.0.0.0/8"]}),
    }


def _kernel_state(node: ProxyNode) -> dict[str, Any]:
    kernel = node.kernel
    chains = {name for name in kernel.chains(IPV4) if name.startswith(("fw-", "s-", "e-"))}
    sets = kernel.sets(IPV4)
    return {"chains": chains, "sets": sets, **{name: kernel.elements(IPV4, name) for name in sets}}


@pytest.mark.parametrize("seed", [1, 2])
def test_diffs_give_the_same_state_as_a_full_sync(node_net: NodeNet, node: ProxyNode, seed: int) -> None:
    rng = random.Random(seed)
    for step in range(STEPS):
        number = rng.randrange(6)
        if rng.random() < 0.25:
            deleted = node.service_rules.decide(Key("shop", f"s{number}"), None, [], NodeLocation("a1", cluster()))
            node.applier.apply(deleted)
        else:
            numbers = rng.sample(range(9), rng.randrange(5))
            endpoints = [endpoint(f"10.1.0.{last_byte}", rng.choice(["a1", "b1"])) for last_byte in numbers]
            node.serve(endpoints, f"s{number}", **_spec(rng, number))
        if step % 10 == 0:
            changed = _kernel_state(node)
            node.applier.repair()
            assert _kernel_state(node) == changed, f"after {step} changes"
    assert node.applier.conflicts(), "the seeds make Services conflict"
    assert node_net.nft("list", "ruleset")
    assert set(FixedLayout) <= node.kernel.sets(IPV4)


def test_rejected_transaction_changes_nothing_and_is_counted(node_net: NodeNet, node: ProxyNode) -> None:
    """Also not by the messages before the rejected one; a full sync follows."""
    node.serve([endpoint("10.1.0.1"), endpoint("10.1.0.2")])
    before = _kernel_state(node)
    good = netlink.add_elements(IPV4.number, TABLE, FixedLayout.CLUSTER_IPS, {IPV4.pack("10.96.9.9"): None})
    bad = netlink.delete_elements(IPV4.number, TABLE, FixedLayout.CLUSTER_IPS, [IPV4.pack("10.96.8.8")])
    with pytest.raises(NftRefusedError, match="delete elements"):
        node.kernel.commit([*good, *bad])
    assert _kernel_state(node) == before
    node_net.nft("flush", "map", "ip", "zonewise", "ep")
    refusals = _refusals()
    node.serve([endpoint("10.1.0.3")])
    assert _refusals() == refusals + 1
    assert len(node.kernel.elements(IPV4, FixedLayout.ENDPOINTS)) == 1, "repaired at once, with the change applied"


def _refusals() -> float:
    return REGISTRY.get_sample_value("zonewise_proxy_refusals_total", {"family": "IPv4"}) or 0.0
