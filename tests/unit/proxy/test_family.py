"""Packed addresses: standard forms, and old forms that API servers once accepted."""

from __future__ import annotations

import pytest

from zonewise.proxy.wire.family import FAMILIES

CASES = {
    "IPv4": ("IPv4", "10.96.0.10", bytes((10, 96, 0, 10))),
    "IPv4 with leading zeros, decimal": ("IPv4", "010.096.000.010", bytes((10, 96, 0, 10))),
    "IPv6": ("IPv6", "fd00::1", bytes.fromhex("fd" + "00" * 14 + "01")),
    "IPv6 with an IPv4 end": ("IPv6", "::ffff:10.0.0.1", bytes.fromhex("00" * 10 + "ffff0a000001")),
}


@pytest.mark.parametrize(("family", "address", "packed"), CASES.values(), ids=CASES)
def test_pack_and_pack_all_agree(family: str, address: str, packed: bytes) -> None:
    canonical = FAMILIES[family].unpack(packed)
    assert FAMILIES[family].pack(address) == packed
    assert FAMILIES[family].pack_all([canonical, address]) == [packed, packed]


@pytest.mark.parametrize(("family", "address"), [("IPv4", "fd00::1"), ("IPv4", "10.0.0"), ("IPv6", "10.0.0.1")])
def test_address_of_another_family_raises(family: str, address: str) -> None:
    with pytest.raises(ValueError, match=r"not enough values|Expected at least|invalid literal|At least"):
        FAMILIES[family].pack(address)
