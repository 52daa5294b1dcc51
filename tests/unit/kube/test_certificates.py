"""Authorities and leaf certificates: contents, storage, and rotation that every client can follow."""

import datetime as dt
import ipaddress
import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.kube.server.caller_keys import KeyLifetimes
from zonewise.kube.server.certificates import (
    CERTIFICATES_FIELD,
    KEYS_FIELD,
    Authorities,
    Authority,
    CertificateError,
    Leaf,
    Lifetimes,
    leaf_due,
)

NOW = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
LIFETIMES = Lifetimes(caller_keys=KeyLifetimes(key=9999 * DAY, settling=9999 * DAY))  # only authorities rotate here
HOST = "zonewise-webhook.zonewise-system.svc"


def verify(leaf: Leaf, bundle_pem: bytes, now: dt.datetime) -> None:
    """Verify as a strict client; raises if the leaf is not trusted."""
    trusted = x509.load_pem_x509_certificates(bundle_pem)
    verifier = PolicyBuilder().store(Store(trusted)).time(now).build_server_verifier(x509.DNSName(HOST))
    verifier.verify(x509.load_pem_x509_certificate(leaf.certificate_pem), [])


def test_leaf_names_its_hosts_and_is_trusted_by_its_authority_only() -> None:
    authority, other = Authority.create(NOW, 365 * DAY), Authority.create(NOW, 365 * DAY)
    leaf = authority.issue([HOST, "127.0.0.1", "::1"], NOW, 14 * DAY)
    verify(leaf, authority.certificate_pem, NOW)
    with pytest.raises(x509.verification.VerificationError):
        verify(leaf, other.certificate_pem, NOW)
    names = x509.load_pem_x509_certificate(leaf.certificate_pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == [HOST]
    addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    assert names.value.get_values_for_type(x509.IPAddress) == addresses


def test_leaf_made_while_the_clock_was_ahead_is_due_once_it_is_right() -> None:
    authority = Authority.create(NOW, 365 * DAY)
    leaf = authority.issue([HOST], NOW + 8 * DAY, 14 * DAY)
    assert not leaf_due(leaf, authority, NOW + 8 * DAY, LIFETIMES)
    assert leaf_due(leaf, authority, NOW, LIFETIMES)


def test_clock_that_lags_accepts_a_new_leaf() -> None:
    authority = Authority.create(NOW, 365 * DAY)
    leaf = authority.issue([HOST], NOW, 14 * DAY)
    verify(leaf, authority.certificate_pem, NOW - 0.9 * HOUR)


def test_leaf_does_not_outlive_its_authority() -> None:
    authority = Authority.create(NOW, 10 * DAY)
    assert authority.issue([HOST], NOW, 14 * DAY).expires == authority.expires
    assert authority.issue([HOST], NOW, 2 * DAY).expires == NOW + 2 * DAY


def test_repr_contains_no_secret() -> None:
    authority = Authority.create(NOW, DAY)
    shown = f"{authority!r} {authority.issue([HOST], NOW, DAY)!r} {Authorities((authority,))!r}"
    assert "PRIVATE" not in shown


def test_authorities_round_trip_through_the_secret() -> None:
    authorities = Authorities(tuple(Authority.create(NOW + offset * DAY, 365 * DAY) for offset in range(3)))
    stored = authorities.to_secret()
    read = Authorities.from_secret(stored)
    assert [member.fingerprint for member in read.members] == [member.fingerprint for member in authorities.members]
    assert read.to_secret() == stored
    later = NOW + 2 * DAY
    verify(read.members[2].issue([HOST], later, DAY), authorities.bundle_pem, later)


def test_empty_secret_holds_no_authority() -> None:
    assert Authorities.from_secret({}).members == ()
    assert Authorities.from_secret({CERTIFICATES_FIELD: b"", KEYS_FIELD: b""}).members == ()


def broken_secrets() -> dict[str, dict[str, bytes]]:
    good = Authorities((Authority.create(NOW, DAY),)).to_secret()
    other = Authorities((Authority.create(NOW, DAY),)).to_secret()
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    encrypted_key = Authority.create(NOW, DAY).key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    return {
        "certificate is not PEM": {**good, CERTIFICATES_FIELD: b"certificate"},
        "key is not PEM": {**good, KEYS_FIELD: b"key"},
        "key is missing": {CERTIFICATES_FIELD: good[CERTIFICATES_FIELD]},
        "key of another": {**good, KEYS_FIELD: other[KEYS_FIELD]},
        "key of another kind": {**good, KEYS_FIELD: rsa_key},
        "key is encrypted": {**good, KEYS_FIELD: encrypted_key},
    }


@pytest.mark.parametrize("data", broken_secrets().values(), ids=broken_secrets())
def test_broken_secret_raises(data: dict[str, bytes]) -> None:
    with pytest.raises(CertificateError, match=r"ca\.crt|ca\.key") as caught:
        Authorities.from_secret(data)
    assert "PRIVATE" not in str(caught.value)


def first() -> Authorities:
    return Authorities().renewed(NOW, LIFETIMES)


def test_first_authority_signs_at_once() -> None:
    assert Authorities().renewal_due(NOW, LIFETIMES)
    authorities = first()
    assert len(authorities.members) == 1
    assert not authorities.renewal_due(NOW, LIFETIMES)
    assert authorities.signer({}, NOW, LIFETIMES) is authorities.members[0]


def test_successor_is_trusted_before_it_signs() -> None:
    later = NOW + 305 * DAY
    old = first()
    assert not old.renewal_due(later - HOUR, LIFETIMES)
    assert old.renewal_due(later, LIFETIMES)
    both = old.renewed(later, LIFETIMES)
    assert both.members[0] is old.members[0]
    successor = both.members[1]
    since = {both.members[0].fingerprint: NOW, successor.fingerprint: later}
    assert both.signer(since, later, LIFETIMES) is both.members[0]
    assert both.signer(since, later + HOUR, LIFETIMES) is successor


def test_expired_authority_is_dropped() -> None:
    both = first().renewed(NOW + 305 * DAY, LIFETIMES)
    end = both.members[0].expires
    assert not both.renewal_due(end - HOUR, LIFETIMES)
    assert both.renewal_due(end, LIFETIMES)
    assert both.renewed(end, LIFETIMES).members == both.members[1:]


def test_new_authority_signs_at_once_after_all_expired() -> None:
    late = NOW + 1000 * DAY
    renewed = first().renewed(late, LIFETIMES)
    assert len(renewed.members) == 1
    assert renewed.signer({}, late, LIFETIMES).expires > late


def test_late_replica_does_not_sign_with_an_expiring_authority() -> None:
    both = first().renewed(NOW + 305 * DAY, LIFETIMES)
    just_before = both.members[0].expires - 13 * DAY
    assert both.signer({}, just_before, LIFETIMES) is both.members[1]


LEAVES = {
    "fresh": (dt.timedelta(), False),
    "half-way": (7 * DAY, True),
    "just before": (7 * DAY - HOUR, False),
}


@pytest.mark.parametrize(("age", "due"), LEAVES.values(), ids=LEAVES)
def test_leaf_is_renewed_well_before_its_end(age: dt.timedelta, due: bool) -> None:
    authority = first().members[0]
    leaf = authority.issue([HOST], NOW, LIFETIMES.leaf)
    assert leaf_due(leaf, authority, NOW + age, LIFETIMES) is due
    assert leaf_due(leaf, Authority.create(NOW, DAY), NOW + age, LIFETIMES)
    assert leaf_due(None, authority, NOW, LIFETIMES)


def test_lifetimes_with_a_gap_are_refused() -> None:
    with pytest.raises(ValueError, match="settling \\+ leaf < authority_renewal"):
        Lifetimes(settling=47 * DAY)
    with pytest.raises(ValueError, match="leaf_renewal < leaf"):
        Lifetimes(leaf_renewal=14 * DAY)


class Replica:
    """One server's view of the shared authorities, as `CertManager` keeps it."""

    def __init__(self) -> None:
        self.since: dict[str, dt.datetime] = {}
        self.leaf: Leaf | None = None

    def renew(self, authorities: Authorities, now: dt.datetime) -> None:
        for member in authorities.members:
            self.since.setdefault(member.fingerprint, now)
        signer = authorities.signer(self.since, now, LIFETIMES)
        if leaf_due(self.leaf, signer, now, LIFETIMES):
            self.leaf = signer.issue([HOST], now, LIFETIMES.leaf)


@given(st.integers(0, 2**32))
@settings(max_examples=2, deadline=None)
def test_clients_always_trust_the_served_leaf(seed: int) -> None:
    """Two years with checks at random times, restarts, and API servers that get a bundle late."""
    chance = random.Random(seed)
    now, authorities = NOW, Authorities()
    replicas = [Replica(), Replica()]
    bundles: list[tuple[dt.datetime, bytes]] = []
    while now < NOW + 800 * DAY:
        if authorities.renewal_due(now, LIFETIMES):
            authorities = authorities.renewed(now, LIFETIMES)
        bundles.append((now, authorities.bundle_pem))
        if chance.random() < 0.2:
            replicas[chance.randrange(2)] = Replica()
        learned = now - chance.random() * LIFETIMES.settling
        learned_bundles = [bundle for since, bundle in bundles if since <= learned] or [bundles[0][1]]
        for replica in replicas:
            replica.renew(authorities, now)
            assert replica.leaf is not None
            verify(replica.leaf, learned_bundles[-1], now)
        now += chance.choice([chance.uniform(0.01, 0.1), chance.uniform(0.1, 6.5)]) * DAY
        for replica in replicas:
            assert replica.leaf is not None
            verify(replica.leaf, authorities.bundle_pem, now - dt.timedelta(seconds=1))
