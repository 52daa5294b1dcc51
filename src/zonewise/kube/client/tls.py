"""TLS contexts for the API server, rebuilt when a CA, certificate or key changes on disk or in the exec plugin."""

from __future__ import annotations

import ssl
import tempfile

from zonewise.kube.client.watched_file import content_of, source_of
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import ConfigError
from zonewise.log import get_logger

_log = get_logger(__name__)


class TlsContexts:
    """The newest context that could be made. New connections use it; open ones keep theirs."""

    def __init__(self, access: ClusterAccess) -> None:
        self._verify = access.verify
        self._origin = access.origin
        self._authority = source_of(access.authority)
        own = access.certificate
        self._certificate = source_of(own.certificate if own else None)
        self._key = source_of(own.key if own else None)
        self._made_from: tuple[bytes, bytes] | None = None
        self._context: ssl.SSLContext | None = None

    def current(self, plugin_certificate: bytes = b"") -> ssl.SSLContext:
        material = (content_of(self._authority), plugin_certificate or self._own_certificate())
        if self._context is None or material != self._made_from:
            self._renew(*material)
        assert self._context is not None
        return self._context

    def _own_certificate(self) -> bytes:
        return b"\n".join((content_of(self._certificate), content_of(self._key))) if self._certificate else b""

    def _renew(self, authority: bytes, certificate: bytes) -> None:
        """Certificate and key are often replaced one after the other: until they fit, the old pair serves."""
        try:
            self._context = make_context(authority, certificate, self._verify, self._origin)
        except ConfigError as error:
            if self._context is None:
                raise
            _log.warning("new TLS files do not work, keeping the old ones", error=str(error))
        self._made_from = (authority, certificate)


def make_context(authority: bytes, certificate: bytes, verify: bool, origin: str) -> ssl.SSLContext:
    """`certificate` is the client's own, with its key; empty for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority:
        _trust(context, authority, origin)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if certificate:
        _present(context, certificate, origin)
    return context


def _trust(context: ssl.SSLContext, authority: bytes, origin: str) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode())
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{origin}: certificate-authority holds no certificate: {error}") from error


def _present(context: ssl.SSLContext, certificate: bytes, origin: str) -> None:
    # The ssl module loads chains from files only.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate)
        file.flush()
        try:
            # An empty password, or OpenSSL asks for one at the terminal.
            context.load_cert_chain(file.name, password="")
        except ssl.SSLError as error:
            raise ConfigError(f"{origin}: client certificate and key do not work together: {error}") from error
