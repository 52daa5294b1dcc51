"""TLS contexts follow changes of their files; handshakes run in memory."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from zonewise.kube.client.tls import TlsContexts, make_context
from zonewise.kube.wire.access import ClientCertificate, ClusterAccess
from zonewise.kube.wire.errors import ConfigError

AUTHORITY = trustme.CA()
OTHER_AUTHORITY = trustme.CA()
SERVER = AUTHORITY.issue_cert("api.example.com")
ALICE = AUTHORITY.issue_cert("alice@example.com", common_name="alice")
BOB = AUTHORITY.issue_cert("bob@example.com", common_name="bob")


def certificate(leaf: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in leaf.cert_chain_pems)


def key(leaf: trustme.LeafCert) -> bytes:
    return leaf.private_key_pem.bytes()


def pair(leaf: trustme.LeafCert) -> bytes:
    return certificate(leaf) + b"\n" + key(leaf)


def pem(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


def handshake(client: ssl.SSLContext, name: str = "api.example.com") -> str:
    """Common name of the client certificate as the server sees it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    SERVER.configure_cert(context)
    AUTHORITY.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(downwards, upwards, server_hostname=name)
    server_side = context.wrap_bio(upwards, downwards, server_side=True)
    waiting = [client_side, server_side]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    peer_certificate = server_side.getpeercert() or {}
    subject = {name: value for ((name, value),) in peer_certificate.get("subject", ())}
    return subject.get("commonName", "")


def test_given_authority_is_trusted() -> None:
    assert handshake(make_context(pem(AUTHORITY), b"", True, "it")) == ""
    assert handshake(make_context(pem(OTHER_AUTHORITY) + pem(AUTHORITY), b"", True, "it")) == ""


@pytest.mark.parametrize(
    ("authority", "name"), [(OTHER_AUTHORITY, "api.example.com"), (None, "api.example.com"), (AUTHORITY, "elsewhere")]
)
def test_other_authorities_and_names_are_not_trusted(authority: trustme.CA | None, name: str) -> None:
    context = make_context(pem(authority) if authority else b"", b"", True, "it")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, name)


def test_without_verification_any_server_is_trusted() -> None:
    assert handshake(make_context(b"", b"", False, "it"), "elsewhere") == ""


def test_client_certificate_is_presented() -> None:
    assert handshake(make_context(pem(AUTHORITY), pair(ALICE), True, "it")) == "alice"


def encrypted(leaf: trustme.LeafCert) -> bytes:
    loaded = serialization.load_pem_private_key(key(leaf), None)
    secret = serialization.BestAvailableEncryption(b"password")
    return loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)


@pytest.mark.parametrize(
    ("authority", "own", "says"),
    [
        (b"no PEM", b"", "certificate-authority holds no certificate"),
        (b"\xff", b"", "certificate-authority holds no certificate"),
        (b"", certificate(ALICE) + key(BOB), "do not work together"),
        (b"", b"no PEM", "do not work together"),
        (b"", certificate(ALICE) + encrypted(ALICE), "do not work together"),
    ],
    ids=["no authority", "noise", "another's key", "no pair", "encrypted"],
)
def test_wrong_values_are_reported(authority: bytes, own: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^context 'x': .*{says}"):
        make_context(authority, own, True, "context 'x'")


@pytest.fixture
def files(tmp_path: Path) -> ClusterAccess:
    (tmp_path / "ca").write_bytes(pem(AUTHORITY))
    (tmp_path / "crt").write_bytes(certificate(ALICE))
    (tmp_path / "key").write_bytes(key(ALICE))
    own = ClientCertificate(tmp_path / "crt", tmp_path / "key")
    return ClusterAccess(server="https://api.example.com", authority=tmp_path / "ca", certificate=own)


def test_context_is_reused_while_files_are_unchanged(files: ClusterAccess) -> None:
    contexts = TlsContexts(files)
    assert contexts.current() is contexts.current()


def test_new_pair_is_used_once_both_files_exist(files: ClusterAccess, tmp_path: Path) -> None:
    contexts = TlsContexts(files)
    assert handshake(contexts.current()) == "alice"
    (tmp_path / "crt").write_bytes(certificate(BOB))
    assert handshake(contexts.current()) == "alice"
    (tmp_path / "key").write_bytes(key(BOB))
    assert handshake(contexts.current()) == "bob"


def test_new_authority_is_trusted(files: ClusterAccess, tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(pem(OTHER_AUTHORITY))
    contexts = TlsContexts(files)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(contexts.current())
    (tmp_path / "ca").write_bytes(pem(AUTHORITY))
    assert handshake(contexts.current()) == "alice"


def test_plugin_certificate_wins_over_the_files(files: ClusterAccess) -> None:
    contexts = TlsContexts(files)
    assert handshake(contexts.current(pair(BOB))) == "bob"
    assert handshake(contexts.current()) == "alice"


def test_files_that_never_worked_raise_a_config_error(files: ClusterAccess, tmp_path: Path) -> None:
    (tmp_path / "key").unlink()
    with pytest.raises(ConfigError, match="key cannot be read"):
        TlsContexts(files).current()
    (tmp_path / "key").write_bytes(key(BOB))
    with pytest.raises(ConfigError, match="do not work together"):
        TlsContexts(files).current()
