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


def handshake_subject(directory: Path, host: str) -> dict[str, list[str]]:
    """Subject of the client certificate as the server sees it, over mutually verified TLS."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.crt"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(directory / "server.crt", directory / "server.key")
    client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    client.load_cert_chain(directory / "client.crt", directory / "client.key")
    server_socket, client_socket = socket.socketpair()
    subject: dict[str, list[str]] = {}

    def serve() -> None:
        with server.wrap_socket(server_socket, server_side=True) as connection:
            for ((name, value),) in connection.getpeercert()["subject"]:  # type: ignore[index]
                subject.setdefault(name, []).append(value)
            connection.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(client_socket, server_hostname=host) as connection:
        connection.recv(1)
    thread.join()
    return subject


@pytest.mark.parametrize("host", ["127.0.0.1", "kubernetes.default.svc", "fd7a::1"])
def test_client_and_server_certificates_are_mutually_trusted(
    authority: LabAuthority, tmp_path: Path, host: str
) -> None:
    authority.pair.write(tmp_path, "ca")
    authority.server("server", [host, "localhost", host], NOW).write(tmp_path, "server")
    authority.client("system:node:a", ["system:nodes", "more"], NOW).write(tmp_path, "client")
    assert handshake_subject(tmp_path, host) == {
        "organizationName": ["system:nodes", "more"],
        "commonName": ["system:node:a"],
    }


def test_keys_are_readable_by_their_owner_only(authority: LabAuthority, tmp_path: Path) -> None:
    authority.pair.write(tmp_path, "ca")
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key"]


def test_loaded_authority_signs_with_the_same_root(authority: LabAuthority, tmp_path: Path) -> None:
    authority.pair.write(tmp_path, "ca")
    later = LabAuthority.load(tmp_path).client("late", [], NOW)
    later.certificate.verify_directly_issued_by(authority.pair.certificate)


def test_key_of_another_type_is_refused(authority: LabAuthority, tmp_path: Path) -> None:
    authority.pair.write(tmp_path, "ca")
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - only for a wrong key

    foreign = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "ca.key").write_bytes(foreign)
    with pytest.raises(TypeError, match="no elliptic curve key"):
        LabAuthority.load(tmp_path)


def test_service_account_keys_differ() -> None:
    assert service_account_key() != service_account_key()
