"""Routing: which endpoints serve which clients, with the reason for each decision. Pure.

`read_policy` reads the policy of a Service, `decide` decides for all clients and `choose` for those of one node.
`forecast` predicts the effect on traffic, `express` turns a decision into EndpointSlice hints, and `stock_choice` tells
what a stock kube-proxy makes of such hints.
"""

from zonewise.api.names import DRAIN_ZONE
from zonewise.routing.decide import HintsForm, decide
from zonewise.routing.decision import ClientChoice, Decision, choose
from zonewise.routing.drain import NO_DRAIN, Drain, drained_zones
from zonewise.routing.forecast import Forecast, forecast
from zonewise.routing.hints_codec import HintsExpression, express, recall
from zonewise.routing.kube_proxy import ProxyChoice, stock_choice
from zonewise.routing.policy import Policy, PolicyReading, read_policy
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.routing_nodes import NODE_NAME, RoutingNodes
from zonewise.routing.tiers import EVERYONE, Memory, Tier

__all__ = [
    "DRAIN_ZONE",
    "EVERYONE",
    "NODE_NAME",
    "NO_DRAIN",
    "ClientChoice",
    "Decision",
    "Drain",
    "Forecast",
    "HintsExpression",
    "HintsForm",
    "Memory",
    "Policy",
    "PolicyReading",
    "ProxyChoice",
    "RoutingCode",
    "RoutingNodes",
    "RoutingReason",
    "RoutingSubject",
    "Tier",
    "choose",
    "decide",
    "drained_zones",
    "express",
    "forecast",
    "read_policy",
    "recall",
    "stock_choice",
]
