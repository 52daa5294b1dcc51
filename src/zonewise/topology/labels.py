"""What a domain is: the value of a node label, read the same way by every capability.

This is the only place that knows zone and region had other names before Kubernetes 1.17. It also says which strings
the API server takes as label keys and values, for everything that lets a user write one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from zonewise.api.names import BETA_REGION, BETA_ZONE, REGION, ZONE

_BETA_SPELLING: Final = {ZONE: BETA_ZONE, REGION: BETA_REGION}
_TODAYS_SPELLING: Final = {beta: today for today, beta in _BETA_SPELLING.items()}

_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH: Final = 63
_SUBDOMAIN_LENGTH: Final = 253


def canonical_key(key: str) -> str:
    """Today's spelling of a label key; any key but the two beta ones is its own."""
    return _TODAYS_SPELLING.get(key, key)


def domain_of(labels: Mapping[str, str], key: str) -> str | None:
    """The domain that a node with these labels is in, for any label key, or None.

    Zone and region are found under either spelling whichever is asked for; today's wins where a node carries both.
    An empty value names no domain.
    """
    today = canonical_key(key)
    if domain := labels.get(today):
        return domain
    beta = _BETA_SPELLING.get(today)
    return (labels.get(beta) or None) if beta else None


def canonical_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels with zone and region under today's spelling only, for requirements whose keys are canonical."""
    read = {key: value for key, value in labels.items() if key not in _TODAYS_SPELLING}
    for today in _BETA_SPELLING:
        if domain := domain_of(labels, today):
            read[today] = domain
    return read


def zone_of(labels: Mapping[str, str]) -> str | None:
    return domain_of(labels, ZONE)


def region_of(labels: Mapping[str, str]) -> str | None:
    return domain_of(labels, REGION)


def key_problem(key: str) -> str | None:
    """What is wrong with a label key, as advice on what to write; None when the API server would take it."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        return f"{prefix!r} is not a DNS name in lower case; write a key such as example.com/rack"
    if len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
        return (
            f"{name!r} is not a label name; write 1 to {_NAME_LENGTH} letters, digits, '-', '_' or '.', "
            "beginning and ending with a letter or digit"
        )
    return None


def value_problem(value: str) -> str | None:
    """What is wrong with a label value, as advice on what to write; None when the API server would take it."""
    if not value or (len(value) <= _NAME_LENGTH and _NAME.fullmatch(value)):
        return None
    return (
        f"{value!r} is not a label value; write at most {_NAME_LENGTH} letters, digits, '-', '_' or '.', "
        "beginning and ending with a letter or digit"
    )


def is_subdomain(name: str) -> bool:
    """True for what may stand as a node's name or before the slash of a label key (RFC 1123)."""
    return len(name) <= _SUBDOMAIN_LENGTH and _SUBDOMAIN.fullmatch(name) is not None
