"""The address families of a Service, and addresses in the one spelling that slices use. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from zonewise.objects import Service


class ServiceFamily(StrEnum):
    """The values are the address types of slices."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


def is_headless(service: Service) -> bool:
    return service.spec.cluster_ip in {"", "None"}


def families_of(service: Service) -> tuple[ServiceFamily, ...]:
    """What the Service says; else its cluster IP's, and both for a headless one: it may be older than the field."""
    said = tuple(
        dict.fromkeys(ServiceFamily(family) for family in service.spec.ip_families if family in set(ServiceFamily))
    )
    if said:
        return said
    if is_headless(service):
        return (ServiceFamily.IPV4, ServiceFamily.IPV6)
    known = canonical(service.spec.cluster_ip)
    return (known[0],) if known else (ServiceFamily.IPV4,)


_PART: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_USUAL_IPV4: Final = re.compile(rf"{_PART}(\.{_PART}){{3}}", re.ASCII)


@lru_cache(maxsize=65536)
def canonical(address: str) -> tuple[ServiceFamily, str] | None:
    """The family and usual spelling, None for what is no address.

    As upstream reads it: zeros may lead the parts of an IPv4 address, and one that IPv6 wraps counts as IPv4.
    """
    if _USUAL_IPV4.fullmatch(address):  # what nearly all are, and ten times as fast as parsing it
        return ServiceFamily.IPV4, address
    try:
        parsed = ip_address(_without_leading_zeros(address))
    except ValueError:
        return None
    match parsed:
        case IPv4Address():
            return ServiceFamily.IPV4, str(parsed)
        case IPv6Address(ipv4_mapped=IPv4Address() as wrapped):
            return ServiceFamily.IPV4, str(wrapped)
        case _:
            return (ServiceFamily.IPV6, str(parsed)) if not parsed.scope_id else None


def _without_leading_zeros(address: str) -> str:
    if ":" in address:
        return address
    return ".".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in address.split("."))
