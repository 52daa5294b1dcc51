"""Tiers: which of Kubernetes' specs run together, on how many nodes. Pure.

A tier is one line of `TIERS`. `focus` and `skip` are regular expressions over the whole name of a spec, as ginkgo takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from support.conformance.setups import Setup
from zonewise.errors import UsageError

_NOT_HERE: Final = (
    r"\[Disruptive\]",  # ends or restarts nodes
    r"\[Alpha\]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    name: str
    what: str
    focus: tuple[str, ...]
    skip: tuple[str, ...] = _NOT_HERE
    features: tuple[str, ...] = ()
    """Specs marked `[Feature:NAME]` run for these only: most features are switched on by choice, many in one cloud."""
    setups: tuple[Setup, ...] = (Setup.STOCK, Setup.OURS, Setup.OVERLAY)
    nodes_per_zone: int = 1
    processes: int = 4
    """Of ginkgo. Specs wait for pods most of the time."""
    timeout_minutes: int = 60
    network_policies: bool = False
    """Whether the lab enforces them."""
    budgets: bool = False
    """Whether every namespace gets a budget of ours, where Zonewise is installed."""


TIERS: Final = {
    tier.name: tier
    for tier in (
        Tier(
            name="conformance",
            what="conformance specs of SIG Network, and all of DisruptionController",
            focus=(r"\[sig-network\].*\[Conformance\]", r"\[sig-apps\] DisruptionController"),
            skip=(r"\[Disruptive\]",),
        ),
        Tier(
            name="full",
            what="all conformance specs",
            focus=(r"\[Conformance\]",),
            skip=(r"\[Disruptive\]",),
            setups=(Setup.STOCK, Setup.OURS),
            timeout_minutes=180,
        ),
        Tier(
            name="wide",
            what="the other specs of SIG Network, dual stack and SCTP included, without those that need a feature of a cloud",
            focus=(r"\[sig-network\]",),
            skip=(
                *_NOT_HERE,
                r"\[Conformance\]",  # in their own tier
                r"DNS configMap nameserver",  # changes CoreDNS' configuration
            ),
            features=("IPv6DualStack", "SCTPConnectivity"),
            nodes_per_zone=2,
            timeout_minutes=120,
        ),
        Tier(
            name="policies",
            what="network policies, by kube-router, between pods that ask each other through Services",
            focus=(r"\[sig-network\] Netpol .*NetworkPolicy between",),
            features=("NetworkPolicy",),
            setups=(Setup.STOCK, Setup.OURS),
            network_policies=True,
        ),
        Tier(
            name="apps",
            what="workload controllers whose pods are evicted and spread, with a TopologyDisruptionBudget in each namespace",
            focus=(r"\[sig-apps\] (StatefulSet|Daemon set|Deployment|DisruptionController)",),
            budgets=True,
            timeout_minutes=120,
        ),
        Tier(
            name="storage",
            what="External.Storage: dynamic volumes, block devices, copies, snapshots, growing, topology",
            focus=(r"External.Storage",),
            features=("VolumeSnapshotDataSource", "VolumeSourceXFS"),
            setups=(Setup.RBD, Setup.CEPHFS),
            timeout_minutes=180,
        ),
    )
}


def choose(name: str) -> Tier:
    if name not in TIERS:
        raise UsageError(f"there is no tier {name!r}: choose one of {', '.join(TIERS)}")
    return TIERS[name]


def ginkgo_flags(tier: Tier) -> list[str]:
    return [
        f"--procs={tier.processes}",
        f"--timeout={tier.timeout_minutes}m",
        f"--focus={'|'.join(tier.focus)}",
        f"--skip={'|'.join(tier.skip)}",
        f"--label-filter={_features(tier)}",
    ]


def _features(tier: Tier) -> str:
    return f"Feature: isSubsetOf {{ {', '.join(tier.features)} }}" if tier.features else "Feature: isEmpty"
