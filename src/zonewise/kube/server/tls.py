"""TLS of our own servers: contexts, and a certificate from files or made here.

A certificate of our own is made in a process of its own: the libraries for it would cost every node proxy and DNS
server 12 MB for ever.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from pathlib import Path
from typing import Final

from zonewise.errors import ZonewiseError
from zonewise.log import get_logger

_log = get_logger(__name__)

RELOAD_SECONDS: Final = 60.0
SELF_SIGNED_DAYS: Final = 14
_RENEW_SECONDS: Final = SELF_SIGNED_DAYS * 24 * 3600 / 2


def server_context(client_ca: Path | None = None) -> ssl.SSLContext:
    """A context without a certificate yet: HTTP/1.1, TLS 1.2 or newer. Clients need one signed by `client_ca`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except OSError as error:  # an SSLError is one, too
            raise ZonewiseError(f"{client_ca}: no PEM file with the CA of the API servers: {error}") from error
    return context


def load_pem(context: ssl.SSLContext, pem: bytes) -> None:
    """New connections get the new certificate; open ones keep theirs."""
    # The ssl module loads chains from files only; this one lives in memory and has no name.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class ServingCertificate:
    """From `files` (certificate and key), which are read again as they may be renewed; without them self-signed."""

    def __init__(self, hosts: tuple[str, ...], files: tuple[Path, Path] | None) -> None:
        self.context = server_context()
        self._hosts = hosts
        self._files = files

    async def load(self) -> None:
        if self._files is None:
            load_pem(self.context, await _self_signed(self._hosts))
            return
        try:
            server_context().load_cert_chain(*self._files)  # a pair that does not fit would spoil the context in use
            self.context.load_cert_chain(*self._files)
        except OSError as error:  # an SSLError is one
            names = " and ".join(map(str, self._files))
            raise ZonewiseError(f"{names}: no certificate with its key: {error.strerror or error}") from error

    async def run(self) -> None:
        """Renews it until cancelled; after a failure the old one stays in use."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS if self._files else _RENEW_SECONDS)
            try:
                await self.load()
            except ZonewiseError as error:
                _log.warning("certificate not renewed", error=str(error))


async def _self_signed(hosts: tuple[str, ...]) -> bytes:
    command = [sys.executable, "-m", "zonewise.kube.server.self_signed", str(SELF_SIGNED_DAYS), *hosts]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    pem, messages = await process.communicate()
    if process.returncode:
        last = messages.decode(errors="replace").strip().rpartition("\n")[2]
        raise ZonewiseError(f"no certificate could be made: {' '.join(command[1:3])}: {last or process.returncode}")
    return pem
