"""Certificates of our own servers: overlapping authorities, and the leaves they sign.

An authority is made long before its predecessor ends and is only trusted at first; once every API server has had time
to read it, it signs. So the two overlap in the bundle, and no call meets a certificate that it does not trust.
This module says what is due, makes keys and signs; the time is an argument. `zonewise.kube.server.cert_manager` keeps
the authorities in a Secret, with the keys of our callers, and the leaf in a running server.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zonewise.errors import ZonewiseError
from zonewise.kube.server.caller_keys import CallerKeys, KeyLifetimes

CERTIFICATES_FIELD: Final = "ca.crt"
KEYS_FIELD: Final = "ca.key"

_KEY_END: Final = b"-----END PRIVATE KEY-----"
_BACKDATED: Final = dt.timedelta(hours=1)  # the clock of an API server may be behind ours


class CertificateError(ZonewiseError):
    """What is stored as our authorities can't be used."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long each lives, and how long before its end the next is made.

    `settling` is how long a new authority is only trusted, until all API servers know it, before it signs.
    """

    authority: dt.timedelta = dt.timedelta(days=365)
    authority_renewal: dt.timedelta = dt.timedelta(days=60)
    settling: dt.timedelta = dt.timedelta(hours=1)
    leaf: dt.timedelta = dt.timedelta(days=14)
    leaf_renewal: dt.timedelta = dt.timedelta(days=7)
    caller_keys: KeyLifetimes = field(default_factory=KeyLifetimes)

    def __post_init__(self) -> None:
        if not self.settling + self.leaf < self.authority_renewal < self.authority:
            raise ValueError(f"{self}: must be settling + leaf < authority_renewal < authority")
        if not self.leaf_renewal < self.leaf:
            raise ValueError(f"{self}: must be leaf_renewal < leaf")


@dataclass(frozen=True, repr=False)
class Leaf:
    """A server's certificate with its key, both PEM; the key is only ever held in memory."""

    certificate_pem: bytes
    key_pem: bytes
    starts: dt.datetime
    expires: dt.datetime
    authority: str


@dataclass(frozen=True, repr=False)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, now: dt.datetime, lifetime: dt.timedelta) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key()
        name = _name(f"zonewise authority of {now:%Y-%m-%dT%H:%M:%S.%fZ}")
        builder = (
            _builder(name, name, public, now, now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @cached_property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def expires(self) -> dt.datetime:
        return self.certificate.not_valid_after_utc

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self.key)

    def issue(self, hosts: Sequence[str], now: dt.datetime, lifetime: dt.timedelta) -> Leaf:
        """A certificate for DNS names and IP addresses that ends with the authority at the latest."""
        key = ec.generate_private_key(ec.SECP256R1())
        expires = min(now + lifetime, self.expires)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(_name("zonewise"), self.certificate.subject, key.public_key(), now, expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_alternative_name(host) for host in hosts]), critical=False)
            .add_extension(authority_key, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return Leaf(
            certificate.public_bytes(serialization.Encoding.PEM),
            _key_pem(key),
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
            self.fingerprint,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Authorities:
    """Those that are trusted, oldest first, and the keys that our callers have."""

    members: tuple[Authority, ...] = ()
    keys: CallerKeys = field(default_factory=CallerKeys)

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Authorities:
        """Reads what `to_secret` wrote; absent fields mean none yet. Raises CertificateError, or NewerError."""
        bundle = data.get(CERTIFICATES_FIELD, b"")
        try:
            certificates = x509.load_pem_x509_certificates(bundle) if bundle else []
            keys = [_load_key(pem) for pem in _split_keys(data.get(KEYS_FIELD, b""))]
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # a TypeError means an encrypted key
            raise CertificateError(f"{CERTIFICATES_FIELD} or {KEYS_FIELD} is not plain PEM: {error}") from error
        by_public_key = {_public_bytes(key.public_key()): key for key in keys}
        members = tuple(_pair(certificate, by_public_key) for certificate in certificates)
        return cls(members, CallerKeys.from_secret(data))

    def to_secret(self) -> dict[str, bytes]:
        return {
            CERTIFICATES_FIELD: self.bundle_pem,
            KEYS_FIELD: b"".join(authority.key_pem for authority in self.members),
            **self.keys.to_secret(),
        }

    @property
    def bundle_pem(self) -> bytes:
        """What clients should trust."""
        return b"".join(authority.certificate_pem for authority in self.members)

    def renewal_due(self, now: dt.datetime, lifetimes: Lifetimes, carried: str = "") -> bool:
        """True when a successor must be made, or one that has ended dropped; `carried` as in `CallerKeys.renewed`."""
        lapsed = not self.members or self._successor_due(now, lifetimes) or self.members[0].expires <= now
        return lapsed or self.keys.renewal_due(now, lifetimes.caller_keys, carried)

    def renewed(self, now: dt.datetime, lifetimes: Lifetimes, carried: str = "") -> Authorities:
        keys = self.keys.renewed(now, lifetimes.caller_keys, carried)
        valid = Authorities(tuple(authority for authority in self.members if now < authority.expires), keys)
        if valid.members and not valid._successor_due(now, lifetimes):
            return valid
        return Authorities((*valid.members, Authority.create(now, lifetimes.authority)), keys)

    def signer(self, trusted_since: Mapping[str, dt.datetime], now: dt.datetime, lifetimes: Lifetimes) -> Authority:
        """The newest that has settled, else the oldest that outlives a leaf: clients know that one best."""
        settled = [
            authority
            for authority in self.members
            if now - trusted_since.get(authority.fingerprint, now) >= lifetimes.settling
        ]
        lasting = [authority for authority in self.members if authority.expires - now > lifetimes.leaf]
        return (settled[-1:] or lasting[:1] or self.members[-1:])[0]

    def _successor_due(self, now: dt.datetime, lifetimes: Lifetimes) -> bool:
        return self.members[-1].expires - now <= lifetimes.authority_renewal


def leaf_due(leaf: Leaf | None, signer: Authority, now: dt.datetime, lifetimes: Lifetimes) -> bool:
    """Also one that is not valid yet: it was made while our clock was ahead."""
    if leaf is None or leaf.authority != signer.fingerprint:
        return True
    return leaf.expires - now <= lifetimes.leaf_renewal or now < leaf.starts


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: dt.datetime, expires: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(expires)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _split_keys(pem: bytes) -> list[bytes]:
    return [part + _KEY_END for part in pem.split(_KEY_END) if part.strip()]


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{KEYS_FIELD} holds a key that is not of an elliptic curve")
    return key


def _public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _pair(certificate: x509.Certificate, keys: Mapping[bytes, ec.EllipticCurvePrivateKey]) -> Authority:
    key = keys.get(_public_bytes(certificate.public_key()))
    if key is None:
        raise CertificateError(f"{CERTIFICATES_FIELD} holds {certificate.subject.rfc4514_string()!r} without its key")
    return Authority(certificate, key)
