"""IP families of a Service, and the canonical spelling of addresses in slices."""

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
    """From `ipFamilies`. A Service older than that field gets its cluster IP's family, or both if it is headless."""
    declared = tuple(
        dict.fromkeys(ServiceFamily(family) for family in service.spec.ip_families if family in set(ServiceFamily))
    )
    if declared:
        return declared
    if is_headless(service):
        return (ServiceFamily.IPV4, ServiceFamily.IPV6)
    cluster_ip = canonical(service.spec.cluster_ip)
    return (cluster_ip[0],) if cluster_ip else (ServiceFamily.IPV4,)


_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PLAIN_IPV4: Final = re.compile(rf"{_OCTET}(\.{_OCTET}){{3}}", re.ASCII)


@lru_cache(maxsize=65536)
def canonical(address: str) -> tuple[ServiceFamily, str] | None:
    """The family and canonical spelling, or None for an invalid address.

    As upstream parses it: IPv4 octets may have leading zeros, and an IPv4-mapped IPv6 address counts as IPv4.
    """
    if _PLAIN_IPV4.fullmatch(address):  # the common case, ten times as fast as parsing
        return ServiceFamily.IPV4, address
    try:
        parsed = ip_address(_without_leading_zeros(address))
    except ValueError:
        return None
    match parsed:
        case IPv4Address():
            return ServiceFamily.IPV4, str(parsed)
        case IPv6Address(ipv4_mapped=IPv4Address() as mapped):
            return ServiceFamily.IPV4, str(mapped)
        case _:
            return (ServiceFamily.IPV6, str(parsed)) if not parsed.scope_id else None


def _without_leading_zeros(address: str) -> str:
    if ":" in address:
        return address
    return ".".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in address.split("."))
