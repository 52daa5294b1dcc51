"""Certificates of our own servers: self-signed, or from files that are replaced while we run."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from zonewise.errors import ZonewiseError
from zonewise.kube.server.tls import SELF_SIGNED_DAYS, ServingCertificate


async def shown(context: ssl.SSLContext) -> x509.Certificate:
    """The certificate that a client of this context sees."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        pem = await asyncio.to_thread(ssl.get_server_certificate, server.sockets[0].getsockname())
    return x509.load_pem_x509_certificate(pem.encode())


def write(issued: trustme.LeafCert, directory: Path, *names: str) -> tuple[Path, Path]:
    texts = {"tls.crt": issued.cert_chain_pems[0].bytes(), "tls.key": issued.private_key_pem.bytes()}
    for name in names or texts:
        (directory / name).write_bytes(texts[name])
    return directory / "tls.crt", directory / "tls.key"


def host(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


async def test_self_signed_certificates_differ_and_do_not_last() -> None:
    seen = []
    for _ in range(2):
        certificate = ServingCertificate(("localhost", "proxy.example"), None)
        await certificate.load()
        seen.append(await shown(certificate.context))
    assert seen[0].serial_number != seen[1].serial_number
    assert host(seen[0]) == ["localhost", "proxy.example"]
    assert (seen[0].not_valid_after_utc - seen[0].not_valid_before_utc).days == SELF_SIGNED_DAYS


async def test_replaced_files_are_served_and_half_replaced_ones_are_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    first, second = authority.issue_cert("first.example"), authority.issue_cert("second.example")
    certificate = ServingCertificate((), write(first, tmp_path))
    await certificate.load()
    write(second, tmp_path, "tls.crt")
    with pytest.raises(ZonewiseError, match=r"tls\.crt and .*tls\.key: no certificate with its key"):
        await certificate.load()
    assert host(await shown(certificate.context)) == ["first.example"], "the old pair serves on"
    write(second, tmp_path)
    await certificate.load()
    assert host(await shown(certificate.context)) == ["second.example"]


async def test_missing_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ZonewiseError, match=r"no certificate with its key: No such file or directory$"):
        await ServingCertificate((), (tmp_path / "tls.crt", tmp_path / "tls.key")).load()
