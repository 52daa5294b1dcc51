"""The lab's certificates: an authority for all and one for the front proxy, server and client certificates, the service account key.

Everything is made in memory with P-256 keys (milliseconds) and written with keys readable by their owner only.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zonewise.lab.records import write_private

VALID_FOR = dt.timedelta(days=365)
CLOCK_SKEW = dt.timedelta(days=2)  # also that of this machine, when its clock is set back


@dataclass(frozen=True)
class KeyPair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return key_pem(self.key)

    def write(self, directory: Path, name: str) -> None:
        write_private(directory / f"{name}.key", self.key_pem)
        (directory / f"{name}.crt").write_bytes(self.certificate_pem)


class LabAuthority:
    """Signs the lab's certificates; kept on disk so that nodes may join a running lab."""

    def __init__(self, pair: KeyPair) -> None:
        self.pair = pair

    @classmethod
    def create(cls, name: str, now: dt.datetime) -> "LabAuthority":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(KeyPair(certificate, key))

    @classmethod
    def load(cls, directory: Path) -> "LabAuthority":
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{directory / 'ca.key'} holds no elliptic curve key: the lab did not write it")
        return cls(KeyPair(x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()), key))

    def server(self, name: str, hosts: Sequence[str], now: dt.datetime) -> KeyPair:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternatives = x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys(hosts)])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, now, alternatives)

    def client(self, user: str, groups: Sequence[str], now: dt.datetime) -> KeyPair:
        """Kubernetes reads the common name as the user and each organization as a group."""
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, now, None)

    def _issue(
        self,
        subject: x509.Name,
        use: x509.ObjectIdentifier,
        now: dt.datetime,
        alternatives: x509.SubjectAlternativeName | None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.pair.certificate
        builder = (
            _builder(subject, issuer.subject, key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.pair.key.public_key()), critical=False
            )
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return KeyPair(builder.sign(self.pair.key, hashes.SHA256()), key)


def service_account_key() -> bytes:
    return key_pem(ec.generate_private_key(ec.SECP256R1()))


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID_FOR)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
