"""Hypothesis strategies: random clusters of pods, and budgets of every kind."""

from typing import Any

from hypothesis import strategies as st

from unit.disruption.build import (
    ACROSS,
    BY_ZONE,
    EXISTS,
    NAKED,
    NEW,
    NODES,
    NOT_A,
    OLD,
    OVERALL,
    STATEFUL,
    Cluster,
    budget,
    pod,
)
from zonewise.disruption.decide.pods import Owner, PodStage, Workload
from zonewise.topology import ZONE

IN_A_B = {"key": ZONE, "operator": "In", "values": ["a", "b"]}
BUDGETS = (
    ACROSS,
    BY_ZONE,
    OVERALL,
    budget(EXISTS, maxUnavailable=2),
    budget(EXISTS, maxUnavailable="34%"),
    budget(EXISTS, minAvailable=2),
    budget(EXISTS, minAvailable="60%"),
    budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1),
    budget(EXISTS, maxUnavailable="50%", maxDisruptedDomains=2),
    budget(NOT_A, EXISTS, maxUnavailable=1),
    budget(IN_A_B, maxUnavailable=2),
    budget(IN_A_B, minAvailable="50%"),
    budget(minAvailable=4),
    budget(maxUnavailable="40%"),
)
"""Split, frozen, whole, pooled, by number and by share."""

_STATES: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"ready": False},
    {"terminating": True},
    {"granted": True},
    {"disruption_target": True},
    {"stage": PodStage.ENDED, "ready": False},
    {"stage": PodStage.PENDING, "ready": False},
]


@st.composite
def clusters(draw: st.DrawFn, *, healthy: bool = False) -> Cluster:
    """A Deployment in a rollout, a StatefulSet and naked pods; some pods charged, some gone since they were counted."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(NODES)),
                st.sampled_from([OLD, OLD, NEW, STATEFUL, NAKED]),
                st.just({}) if healthy else st.sampled_from(_STATES),
            ),
            min_size=4,
            max_size=24,
        )
    )
    pods = [pod(f"p{number}", node, owner, **facts) for number, (node, owner, facts) in enumerate(drawn)]
    web = Workload(Owner("Deployment", "web", "deployment"), draw(st.integers(0, 20)))
    database = Workload(Owner("StatefulSet", "db", "sts"), draw(st.integers(0, 12)))
    wants = {"rs-old": web, "rs-new": web, "deployment": web, "sts": database}
    cluster = Cluster({member.name: member for member in pods}, wants)
    names = st.sampled_from(sorted(cluster.pods))
    left = draw(st.lists(names, unique=True, max_size=3))
    charges = draw(st.lists(names, unique=True, max_size=5))
    return cluster.charged(*charges).gone(*left)
