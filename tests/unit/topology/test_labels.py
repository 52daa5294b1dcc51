"""Domains from node labels: aliases both ways, any key, and what the API server takes as a label."""

import pytest

from zonewise.api.names import BETA_REGION, BETA_ZONE, REGION, ZONE
from zonewise.topology.labels import (
    canonical_key,
    domain_of,
    is_subdomain,
    key_problem,
    region_of,
    value_problem,
    zone_of,
)

RACK = "example.com/rack"

DOMAINS = {
    "today's label by today's key": ({ZONE: "a"}, ZONE, "a"),
    "today's label by the beta key": ({ZONE: "a"}, BETA_ZONE, "a"),
    "beta label by today's key": ({BETA_ZONE: "a"}, ZONE, "a"),
    "beta label by the beta key": ({BETA_ZONE: "a"}, BETA_ZONE, "a"),
    "today's label wins by today's key": ({ZONE: "new", BETA_ZONE: "old"}, ZONE, "new"),
    "today's label wins by the beta key": ({ZONE: "new", BETA_ZONE: "old"}, BETA_ZONE, "new"),
    "an empty value gives way to the alias": ({ZONE: "", BETA_ZONE: "old"}, ZONE, "old"),
    "empty values name no domain": ({ZONE: "", BETA_ZONE: ""}, ZONE, None),
    "a zone is no region": ({ZONE: "a", BETA_ZONE: "a"}, REGION, None),
    "region has its own alias": ({BETA_REGION: "eu"}, REGION, "eu"),
    "any other key": ({RACK: "r7"}, RACK, "r7"),
    "any other key, empty": ({RACK: ""}, RACK, None),
    "any other key, absent": ({ZONE: "a"}, RACK, None),
    "no labels": ({}, ZONE, None),
}


@pytest.mark.parametrize(("labels", "key", "domain"), DOMAINS.values(), ids=DOMAINS)
def test_domain_of(labels: dict[str, str], key: str, domain: str | None) -> None:
    assert domain_of(labels, key) == domain


def test_the_two_named_domains() -> None:
    labels = {ZONE: "eu-1a", BETA_REGION: "eu-1"}
    assert (zone_of(labels), region_of(labels)) == ("eu-1a", "eu-1")


def test_canonical_keys() -> None:
    assert [canonical_key(key) for key in (BETA_ZONE, ZONE, BETA_REGION, RACK)] == [ZONE, ZONE, REGION, RACK]


GOOD_KEYS = ["rack", "example.com/rack", "a", "A_b.c-D", "x" * 63, f"{'a.' * 126}a/x", "1", "0/0"]
BAD_KEYS = ["", "/rack", "example.com/", "a/b/c", "-a", "a-", "x" * 64, "Example.com/rack", "a b", "é", "a\n", "a..b/x"]


@pytest.mark.parametrize("key", GOOD_KEYS)
def test_good_key(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_key_says_what_to_write(key: str) -> None:
    problem = key_problem(key)
    assert problem is not None
    assert "write" in problem


@pytest.mark.parametrize("value", ["", "a", "A.b_c-1", "9" * 63, "7"])
def test_good_value(value: str) -> None:
    assert value_problem(value) is None


@pytest.mark.parametrize("value", ["-1", "+1", "a-", "x" * 64, "a b", "a/b", "a\n", "٣"])
def test_bad_value_says_what_to_write(value: str) -> None:
    problem = value_problem(value)
    assert problem is not None
    assert "write" in problem


def test_subdomains() -> None:
    assert all(is_subdomain(name) for name in ("a", "node-1.example.com", "1", "a" * 253))
    assert not any(is_subdomain(name) for name in ("", "A", "a_b", "-a", "a.", ".a", "a" * 254))
