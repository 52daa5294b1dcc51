"""Kubernetes quantities ("2", "1500m", "1.5Gi", "12e6") as exact integers, as the API server and scheduler read them.

The grammar and the rounding are those of `k8s.io/apimachinery/pkg/api/resource`: never a float, what does not fit is
rounded away from zero ("0.1m" of a core is one milli), and what is too large is capped. Upstream a number too large
for 64 bits after scaling wraps around; here it stays at the cap.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_SHAPE: Final = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?P<suffix>[a-zA-Z]*[+-]?[0-9]*)")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_CAP: Final = 2**63 - 1
_LONGEST: Final = 300
_FAR: Final = 64  # powers of ten from where every number is capped, or rounded up to the smallest


class QuantityError(ValueError):
    """The text is not a quantity."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a quantity; write a number with a suffix such as 1500m, 2, 4Gi or 12e6")


def milli_value(text: str) -> int:
    """Thousandths, rounded away from zero: what the scheduler counts CPU in."""
    text = text.strip()
    shape = _SHAPE.fullmatch(text)
    if not shape or not text or len(text) > _LONGEST:
        raise QuantityError(text)
    whole, part, suffix = shape["whole"], shape["part"] or "", shape["suffix"]
    # A missing number is zero upstream too: "m" and "." are quantities there.
    digits = int(whole + part or "0")
    if suffix in _BINARY:
        amount = _ceiling(min(Fraction(digits * 2 ** _BINARY[suffix], 10 ** len(part)), Fraction(_CAP)) * 1000)
    else:
        amount = _scaled(digits, _decimal_exponent(suffix, text) - len(part) + 3)
    amount = min(amount, _CAP)
    return -amount if shape["sign"] == "-" else amount


def _decimal_exponent(suffix: str, text: str) -> int:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    if exponent := _EXPONENT.fullmatch(suffix):
        return int(exponent[1])
    raise QuantityError(text)


def _scaled(digits: int, exponent: int) -> int:
    """`digits` times ten to the exponent, rounded up; huge exponents are not computed, their answer is known."""
    if digits == 0:
        return 0
    if exponent > _FAR:
        return _CAP
    if exponent < -_FAR - len(str(digits)):
        return 1
    return digits * 10**exponent if exponent >= 0 else _ceiling(Fraction(digits, 10**-exponent))


def _ceiling(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)
