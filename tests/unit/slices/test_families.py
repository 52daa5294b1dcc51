"""The IP families of a Service, and canonical addresses."""

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.slices.build import service
from zonewise.slices.decide.families import ServiceFamily, canonical, families_of

V4, V6 = ServiceFamily.IPV4, ServiceFamily.IPV6


@pytest.mark.parametrize(
    ("declared", "cluster_ip", "expected"),
    [
        (("IPv4",), "10.96.0.1", (V4,)),
        (("IPv6",), "fd00::1", (V6,)),
        (("IPv6", "IPv4"), "fd00::1", (V6, V4)),
        (("IPv4", "IPX"), "10.96.0.1", (V4,)),
        ((), "10.96.0.1", (V4,)),
        ((), "fd00::1", (V6,)),
        ((), "None", (V4, V6)),
        ((), "", (V4, V6)),
        (("IPv4",), "None", (V4,)),
    ],
    ids=[
        "one family",
        "the other",
        "dual stack, in its order",
        "an unknown family is ignored",
        "older than the field, IPv4",
        "older than the field, IPv6",
        "headless and older than the field",
        "no cluster IP yet",
        "headless",
    ],
)
def test_families(declared: tuple[str, ...], cluster_ip: str, expected: tuple[ServiceFamily, ...]) -> None:
    assert families_of(service(ip_families=declared, cluster_ip=cluster_ip)) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", (V4, "10.0.0.1")),
        ("010.000.0.01", (V4, "10.0.0.1")),
        ("fd00:0:0::0001", (V6, "fd00::1")),
        ("FD00::A", (V6, "fd00::a")),
        ("::ffff:10.0.0.1", (V4, "10.0.0.1")),
        ("fe80::1%eth0", None),
        ("10.0.0", None),
        ("web", None),
        ("", None),
    ],
)
def test_canonical_address(address: str, expected: tuple[ServiceFamily, str] | None) -> None:
    assert canonical(address) == expected


@given(st.ip_addresses(v=4))
def test_plain_ipv4_address_is_unchanged(address: IPv4Address) -> None:
    assert canonical(str(address)) == (ServiceFamily.IPV4, str(address))
