"""Addresses as bytes: what the C library reads, and what API servers once let through."""

from __future__ import annotations

import pytest

from zonewise.proxy.wire.family import FAMILIES

CASES = {
    "IPv4": ("IPv4", "10.96.0.10", bytes((10, 96, 0, 10))),
    "IPv4 with leading zeros, which are decimal": ("IPv4", "010.096.000.010", bytes((10, 96, 0, 10))),
    "IPv6": ("IPv6", "fd00::1", bytes.fromhex("fd" + "00" * 14 + "01")),
    "IPv6 with an IPv4 end": ("IPv6", "::ffff:10.0.0.1", bytes.fromhex("00" * 10 + "ffff0a000001")),
}


@pytest.mark.parametrize(("family", "written", "packed"), CASES.values(), ids=CASES)
def test_an_address_is_packed_alone_and_among_others(family: str, written: str, packed: bytes) -> None:
    usual = FAMILIES[family].unpack(packed)
    assert FAMILIES[family].pack(written) == packed
    assert FAMILIES[family].pack_all([usual, written]) == [packed, packed]


@pytest.mark.parametrize(("family", "written"), [("IPv4", "fd00::1"), ("IPv4", "10.0.0"), ("IPv6", "10.0.0.1")])
def test_what_is_no_address_of_the_family_is_refused(family: str, written: str) -> None:
    with pytest.raises(ValueError, match=r"not enough values|Expected at least|invalid literal|At least"):
        FAMILIES[family].pack(written)
