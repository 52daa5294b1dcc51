"""The labels by which slices are found, and the Service that a slice is for. Pure."""

from __future__ import annotations

from zonewise.objects import SERVICE_NAME, EndpointSlice, Key


def service_key(viewed: EndpointSlice) -> Key:
    """The Service that a slice is for; without a name where it says none."""
    return Key(viewed.metadata.namespace, viewed.metadata.labels.get(SERVICE_NAME, ""))
