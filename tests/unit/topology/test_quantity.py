"""Quantities: upstream's grammar and rounding, exactly."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.topology.quantity import QuantityError, milli_value

CAP = 2**63 - 1
MULTIPLIERS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip

MILLIS = {
    "0": 0,
    "0n": 0,
    "-0": 0,
    "1": 1000,
    "+1": 1000,
    "-1": -1000,
    "2": 2000,
    "007": 7000,
    "1500m": 1500,
    "1.5": 1500,
    "1.": 1000,
    ".5": 500,
    "100m": 100,
    "0.1m": 1,
    "-0.1m": -1,
    "1n": 1,
    "1u": 1,
    "1000u": 1,
    "1001u": 2,
    "999999999n": 1000,
    "0.0009765625Ki": 1000,
    "1Ki": 1_024_000,
    "0.1Ki": 102_400,
    "1.5Mi": 1_572_864_000,
    "12e6": 12_000_000_000,
    "12E6": 12_000_000_000,
    "12e+6": 12_000_000_000,
    "12e-3": 12,
    "1.25e1": 12_500,
    "1e-9": 1,
    "5k": 5_000_000,
    " 2 ": 2000,
    "1E": CAP,
    "9Ei": CAP,
    "1e999999999999": CAP,
    "-1e999999999999": -CAP,
    "1e-999999999999": 1,
    "0e999999999999": 0,
    "+": 0,
    ".": 0,
    "m": 0,
}


@pytest.mark.parametrize(("text", "millis"), MILLIS.items(), ids=[repr(text) for text in MILLIS])
def test_milli_value(text: str, millis: int) -> None:
    assert milli_value(text) == millis


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1x",
        "1K",
        "1mi",
        "1ki",
        "1e",
        "1e5m",
        "1Kim",
        "--1",
        "1-",
        "1 Gi",
        "1_000",
        "0x1",
        "1,5",
        "1.2.3",
        "٣",
        "9" * 301,
    ],
)
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity; write"):
        milli_value(text)


@given(
    st.decimals(min_value=0, max_value=10**6, places=6),
    st.sampled_from(sorted(MULTIPLIERS)),
    st.sampled_from(["", "-"]),
)
def test_every_suffix_is_exact(number: Decimal, suffix: str, sign: str) -> None:
    exact = min(Fraction(number) * MULTIPLIERS[suffix] * 1000, Fraction(CAP))
    millis = -(-exact.numerator // exact.denominator)
    assert milli_value(f"{sign}{number:f}{suffix}") == (-millis if sign else millis)


@given(st.integers(0, 10**6), st.integers(-30, 30))
def test_exponents_are_exact(number: int, exponent: int) -> None:
    exact = min(Fraction(number) * Fraction(10) ** (exponent + 3), Fraction(CAP))
    assert milli_value(f"{number}e{exponent}") == -(-exact.numerator // exact.denominator)


@given(st.text(alphabet="0123456789.+-eEinumkKMGTP x", max_size=12))
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    try:
        millis = milli_value(text)
    except QuantityError:
        return
    assert abs(millis) <= CAP
