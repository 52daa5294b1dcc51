"""Domain names in wire format: a length before each label and a zero at the end, in lower case for comparison.

All DNS modules store and look up names in this form, so that a query's own bytes are the key.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

ROOT: Final = b"\0"
LONGEST_LABEL: Final = 63
LONGEST_NAME: Final = 255


class WrongNameError(ValueError):
    """The text is not a domain name."""


def to_wire(text: str) -> bytes:
    """`web.default.svc` or `web.default.svc.`; in lower case."""
    labels = text.lower().rstrip(".").split(".")
    return join(*(label.encode() for label in labels)) + ROOT if labels != [""] else ROOT


def join(*labels: bytes) -> bytes:
    """A prefix of a name, without the root."""
    if not all(0 < len(label) <= LONGEST_LABEL for label in labels):
        raise WrongNameError(f"{b'.'.join(labels)!r} has a label that is empty or longer than {LONGEST_LABEL} bytes")
    return b"".join(bytes((len(label),)) + label for label in labels)


def below(parent: bytes, *labels: str) -> bytes | None:
    """The name of `labels` under `parent`; None if it is too long for DNS."""
    try:
        name = join(*(label.lower().encode() for label in labels)) + parent
    except WrongNameError:
        return None
    return name if len(name) <= LONGEST_NAME else None


def labels_of(wire: bytes) -> list[bytes]:
    labels, at = [], 0
    while wire[at]:
        labels.append(wire[at + 1 : at + 1 + wire[at]])
        at += wire[at] + 1
    return labels


def to_text(wire: bytes) -> str:
    """Presentation format, with the final dot; bytes that are not printable by their decimal value."""
    return "".join(f"{_escape(label)}." for label in labels_of(wire)) or "."


def _escape(label: bytes) -> str:
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte not in b".\\" else f"\\{byte:03d}" for byte in label)


def packed(address: str) -> bytes | None:
    """The bytes of an A (4) or AAAA (16) record; None if the text is not an address."""
    if (plain := _plain_v4(address)) is not None:
        return plain
    try:
        return ip_address(address).packed
    except ValueError:
        return None


def _plain_v4(address: str) -> bytes | None:
    """Nearly all addresses are in this form, and this is much faster than the library."""
    try:
        octets = bytes(map(int, address.split(".")))
    except ValueError:
        return None
    return octets if len(octets) == 4 and ".".join(map(str, octets)) == address else None


def is_v4(address: bytes) -> bool:
    return len(address) == 4


def dashed(address: str) -> str:
    """The label of an endpoint without a host name: 10-0-0-7, fd00--7, and fd00--0 for fd00::."""
    label = address.replace(".", "-").replace(":", "-")
    return f"{label}0" if label.endswith("-") else label


def undashed(label: str) -> IPv4Address | IPv6Address | None:
    """The address in a pod's label."""
    v4 = label.count("-") == 3 and "--" not in label
    try:
        return IPv4Address(label.replace("-", ".")) if v4 else IPv6Address(label.replace("-", ":"))
    except ValueError:
        return None
