"""The labels by which slices are found, and the Service that a slice is for. Pure."""

from __future__ import annotations

from typing import Final

from zonewise.objects import SERVICE_NAME, EndpointSlice, Key

MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
STOCK_MANAGER: Final = "endpointslice-controller.k8s.io"
"""Kept in mode own, too: consumers and other controllers look for it."""

STATE: Final = "zonewise.dev/routing"
"""The annotation in which a Service says how it is routed, and why."""


def service_key(viewed: EndpointSlice) -> Key:
    """The Service that a slice is for; without a name where it says none."""
    return Key(viewed.metadata.namespace, viewed.metadata.labels.get(SERVICE_NAME, ""))
