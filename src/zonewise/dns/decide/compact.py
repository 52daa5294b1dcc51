"""Compact cache entries of Services and EndpointSlices: the fields that records and rules need, compressed.

The controller unpacks them when their Service changes, which is rare for each. Packed they take a tenth of the memory.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
from msgspec.structs import replace

from zonewise.objects import SERVICE_NAME, Endpoint, EndpointSlice, Metadata, ObjectReference, Service
from zonewise.objects.meta import View

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_COMPRESSION_LEVEL: Final = 1
_EMPTY: Final[dict[str, str]] = {}
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_service: Final = msgspec.msgpack.Decoder(Service).decode
_decode_slice: Final = msgspec.msgpack.Decoder(EndpointSlice).decode


class CompactService(View, frozen=True):
    """A Service or an EndpointSlice. `metadata` has the name alone; `owner` is the Service of a slice."""

    metadata: Metadata
    content: bytes
    owner: str = ""


def pack_service(service: Service) -> CompactService:
    annotations = {name: value for name, value in service.metadata.annotations.items() if name != _LAST_APPLIED}
    name = _name_only(service.metadata)
    kept = Service(metadata=replace(name, annotations=annotations), spec=replace(service.spec, selector=None))
    return CompactService(metadata=name, content=zlib.compress(_encode(kept), _COMPRESSION_LEVEL))


def open_service(packed: CompactService) -> Service:
    return _decode_service(zlib.decompress(packed.content))


def pack_slice(slice_: EndpointSlice) -> CompactService:
    return _pack_slice(slice_, with_pods=False)


def pack_slice_with_pods(slice_: EndpointSlice) -> CompactService:
    """For servers that name endpoints after their pods."""
    return _pack_slice(slice_, with_pods=True)


def _pack_slice(slice_: EndpointSlice, *, with_pods: bool) -> CompactService:
    name, owner = _name_only(slice_.metadata), slice_.metadata.labels.get(SERVICE_NAME, "")
    endpoints = tuple(_endpoint(endpoint, with_pods=with_pods) for endpoint in slice_.endpoints or ())
    kept = EndpointSlice(metadata=name, address_type=slice_.address_type, endpoints=endpoints, ports=slice_.ports)
    return CompactService(metadata=name, content=zlib.compress(_encode(kept), _COMPRESSION_LEVEL), owner=owner)


def open_slice(packed: CompactService) -> EndpointSlice:
    return _decode_slice(zlib.decompress(packed.content))


def _name_only(metadata: Metadata) -> Metadata:
    return Metadata(name=metadata.name, namespace=metadata.namespace, labels=_EMPTY, annotations=_EMPTY)


def _endpoint(endpoint: Endpoint, *, with_pods: bool) -> Endpoint:
    pod = ObjectReference(name=endpoint.target_ref.name) if endpoint.target_ref and with_pods else None
    return replace(endpoint, target_ref=pod)
