"""Views of networking.k8s.io: the ranges that cluster IPs are taken from."""

from __future__ import annotations

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource


class ServiceCIDRSpec(View, frozen=True):
    cidrs: tuple[str, ...] = ()


class ServiceCIDR(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: ServiceCIDRSpec = ServiceCIDRSpec()


SERVICE_CIDRS = Resource(
    view=ServiceCIDR, kind="ServiceCIDR", plural="servicecidrs", group="networking.k8s.io", namespaced=False
)
