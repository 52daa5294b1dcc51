"""What the watcher keeps of Services and slices: the fields that records and rules are made of, packed.

It reads them when their Service changes, which is seldom for each: as packed bytes they take a tenth of the memory. Pure.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
from msgspec.structs import replace

from zonewise.objects import SERVICE_NAME, Endpoint, EndpointSlice, Metadata, ObjectReference, Service
from zonewise.objects.meta import View

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_FAST: Final = 1
_NOTHING: Final[dict[str, str]] = {}
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_service: Final = msgspec.msgpack.Decoder(Service).decode
_decode_slice: Final = msgspec.msgpack.Decoder(EndpointSlice).decode


class CompactService(View, frozen=True):
    """`metadata` has the name alone; `owner` is the Service of a slice."""

    metadata: Metadata
    content: bytes
    owner: str = ""


def pack_service(found: Service) -> CompactService:
    said = {name: value for name, value in found.metadata.annotations.items() if name != _LAST_APPLIED}
    name = _name_alone(found.metadata)
    kept = Service(metadata=replace(name, annotations=said), spec=replace(found.spec, selector=None))
    return CompactService(metadata=name, content=zlib.compress(_encode(kept), _FAST))


def open_service(packed: CompactService) -> Service:
    return _decode_service(zlib.decompress(packed.content))


def pack_slice(found: EndpointSlice) -> CompactService:
    return _pack_slice(found, with_pods=False)


def pack_slice_with_pods(found: EndpointSlice) -> CompactService:
    """For servers that name endpoints after their pods."""
    return _pack_slice(found, with_pods=True)


def _pack_slice(found: EndpointSlice, *, with_pods: bool) -> CompactService:
    name, owner = _name_alone(found.metadata), found.metadata.labels.get(SERVICE_NAME, "")
    endpoints = tuple(_endpoint(each, with_pods=with_pods) for each in found.endpoints or ())
    kept = EndpointSlice(metadata=name, address_type=found.address_type, endpoints=endpoints, ports=found.ports)
    return CompactService(metadata=name, content=zlib.compress(_encode(kept), _FAST), owner=owner)


def open_slice(packed: CompactService) -> EndpointSlice:
    return _decode_slice(zlib.decompress(packed.content))


def _name_alone(found: Metadata) -> Metadata:
    return Metadata(name=found.name, namespace=found.namespace, labels=_NOTHING, annotations=_NOTHING)


def _endpoint(found: Endpoint, *, with_pods: bool) -> Endpoint:
    pod = ObjectReference(name=found.target_ref.name) if found.target_ref and with_pods else None
    return replace(found, target_ref=pod)
