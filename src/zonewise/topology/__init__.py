"""Domains: node labels, zones, capacity and selectors. Pure; used by all packages."""

from zonewise.api.names import HOSTNAME, REGION, ZONE
from zonewise.topology.capacity import (
    Capacity,
    DomainCapacities,
    DomainTotal,
    LeftOut,
    capacities_by_domain,
    capacity_of,
    is_control_plane,
    is_ready,
)
from zonewise.topology.labels import (
    canonical_key,
    canonical_labels,
    domain_of,
    key_problem,
    region_of,
    value_problem,
    zone_of,
)
from zonewise.topology.quantity import QuantityError, milli_value
from zonewise.topology.reason import Reason
from zonewise.topology.requirement import Operator, Requirement, RequirementSpec, SelectorError
from zonewise.topology.selector import (
    LabelSelector,
    LabelSelectorSpec,
    Match,
    NodeSelector,
    NodeSelectorSpec,
    NodeSelectorTerm,
    NodeSelectorTermSpec,
)

__all__ = [
    "HOSTNAME",
    "REGION",
    "ZONE",
    "Capacity",
    "DomainCapacities",
    "DomainTotal",
    "LabelSelector",
    "LabelSelectorSpec",
    "LeftOut",
    "Match",
    "NodeSelector",
    "NodeSelectorSpec",
    "NodeSelectorTerm",
    "NodeSelectorTermSpec",
    "Operator",
    "QuantityError",
    "Reason",
    "Requirement",
    "RequirementSpec",
    "SelectorError",
    "canonical_key",
    "canonical_labels",
    "capacities_by_domain",
    "capacity_of",
    "domain_of",
    "is_control_plane",
    "is_ready",
    "key_problem",
    "milli_value",
    "region_of",
    "value_problem",
    "zone_of",
]
