"""Views of discovery.k8s.io: EndpointSlices."""

from __future__ import annotations

from zonewise.api.names import SERVICE_NAME
from zonewise.objects.core import ObjectReference
from zonewise.objects.meta import Key, Metadata, View
from zonewise.objects.resource import Resource


class EndpointConditions(View, frozen=True):
    """`None` means unknown; the reader decides what that stands for."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(View, frozen=True):
    name: str = ""


class EndpointHints(View, frozen=True):
    for_zones: tuple[Hint, ...] = ()
    for_nodes: tuple[Hint, ...] = ()


class Endpoint(View, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hints: EndpointHints | None = None
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(View, frozen=True):
    name: str | None = None
    protocol: str = "TCP"
    port: int | None = None
    app_protocol: str | None = None


class EndpointSlice(View, frozen=True):
    """The API server sends `null`, not an empty list, for a slice without endpoints or ports."""

    metadata: Metadata = Metadata()
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = ()
    ports: tuple[EndpointPort, ...] | None = ()


ENDPOINT_SLICES = Resource(view=EndpointSlice, kind="EndpointSlice", plural="endpointslices", group="discovery.k8s.io")


def service_key(endpoint_slice: EndpointSlice) -> Key:
    """The Service that a slice belongs to; the name is empty if the slice has no such label."""
    return Key(endpoint_slice.metadata.namespace, endpoint_slice.metadata.labels.get(SERVICE_NAME, ""))
