"""Names of the cluster's domain: the object that each refers to, and the search path of a pod's resolver.

Used for explanations only: the server looks up whole names, and parses only those that are not in its table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from zonewise.dns.wire.names import labels_of, to_text, to_wire
from zonewise.objects import Key

NDOTS: Final = 5
"""A pod's resolver tries names with fewer dots in the search path first."""


class NameKind(StrEnum):
    SERVICE = "Service"
    PORT = "Port"
    ENDPOINT = "Endpoint"
    ZONE = "Zone"
    POD = "Pod"
    REVERSE = "Reverse"
    OTHER = "Other"
    """The domain itself, a namespace, or any other name in the domain."""
    FOREIGN = "Foreign"


@dataclass(frozen=True, slots=True)
class ParsedName:
    """`detail` is the part before the Service: a port, a host name or a zone; for a pod, its address with dashes."""

    name: str
    kind: NameKind
    service: Key | None = None
    detail: str = ""


def parse_name(name: str, domain: str) -> ParsedName:
    """`name` in text form. Raises WrongNameError if it is no DNS name."""
    wire, suffix = to_wire(name), to_wire(domain)
    all_labels, end = labels_of(wire), labels_of(suffix)
    labels = [label.decode("ascii", "replace") for label in all_labels[: len(all_labels) - len(end)]]
    full = to_text(wire)
    if all_labels[len(labels) :] != end:
        reverse = full.endswith((".in-addr.arpa.", ".ip6.arpa."))
        return ParsedName(full, NameKind.REVERSE if reverse else NameKind.FOREIGN)
    match labels:
        case [address, _namespace, "pod"]:
            return ParsedName(full, NameKind.POD, detail=address)
        case [*front, service, namespace, "svc"]:
            return _of_service(full, Key(namespace, service), front)
        case _:
            return ParsedName(full, NameKind.OTHER)


def _of_service(full: str, service: Key, front: list[str]) -> ParsedName:
    match front:
        case []:
            return ParsedName(full, NameKind.SERVICE, service)
        case [port, protocol] if port.startswith("_") and protocol.startswith("_"):
            return ParsedName(full, NameKind.PORT, service, f"{port[1:]}/{protocol[1:]}")
        case [*zone, "pin" | "prefer", "_zone"] if zone:
            return ParsedName(full, NameKind.ZONE, service, ".".join(zone))
        case [host]:
            return ParsedName(full, NameKind.ENDPOINT, service, host)
        case _:
            return ParsedName(full, NameKind.OTHER, service)


def search_path(name: str, namespace: str, domain: str) -> list[str]:
    """The names that a pod's resolver queries, in order, until one exists."""
    end = domain.strip(".")
    plain = name.rstrip(".")
    if name.endswith(".") or f".{plain}".endswith(f".{end}") or plain.endswith(".arpa"):
        return [plain]
    searched = [f"{plain}.{namespace}.svc.{end}", f"{plain}.svc.{end}", f"{plain}.{end}"]
    return [plain, *searched] if plain.count(".") >= NDOTS else [*searched, plain]
