import datetime as dt
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from zonewise.lab.controlplane.pki import LabAuthority, service_account_key

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def authority() -> LabAuthority:
    return LabAuthority.create("test", NOW)


def shake_hands(directory: Path, host: str) -> dict[str, list[str]]:
    """A TLS connection with both sides verified; the client's subject as the server saw it."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.crt"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(directory / "server.crt", directory / "server.key")
    client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    client.load_cert_chain(directory / "client.crt", directory / "client.key")
    left, right = socket.socketpair()
    seen: dict[str, list[str]] = {}

    def serve() -> None:
        with server.wrap_socket(left, server_side=True) as connection:
            for ((name, value),) in connection.getpeercert()["subject"]:  # type: ignore[index]
                seen.setdefault(name, []).append(value)
            connection.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(right, server_hostname=host) as connection:
        connection.recv(1)
    thread.join()
    return seen


@pytest.mark.parametrize("host", ["127.0.0.1", "kubernetes.default.svc", "fd7a::1"])
def test_both_sides_trust_each_other(authority: LabAuthority, tmp_path: Path, host: str) -> None:
    authority.pair.write(tmp_path, "ca")
    authority.server("server", [host, "localhost", host], NOW).write(tmp_path, "server")
    authority.client("system:node:a", ["system:nodes", "more"], NOW).write(tmp_path, "client")
    assert shake_hands(tmp_path, host) == {
        "organizationName": ["system:nodes", "more"],
        "commonName": ["system:node:a"],
    }


def test_keys_are_readable_by_their_owner_only(authority: LabAuthority, tmp_path: Path) -> None:
    authority.pair.write(tmp_path, "ca")
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key"]


def test_a_loaded_authority_signs_for_the_same_root(authority: LabAuthority, tmp_path: Path) -> None:
    authority.pair.write(tmp_path, "ca")
    later = LabAuthority.load(tmp_path).client("late", [], NOW)
    later.certificate.verify_directly_issued_by(authority.pair.certificate)


def test_a_foreign_key_is_refused(authority: LabAuthority, tmp_path: Path) -> None:
    authority.pair.write(tmp_path, "ca")
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - only to have a wrong one

    foreign = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "ca.key").write_bytes(foreign)
    with pytest.raises(TypeError, match="no elliptic curve key"):
        LabAuthority.load(tmp_path)


def test_service_account_keys_differ() -> None:
    assert service_account_key() != service_account_key()
