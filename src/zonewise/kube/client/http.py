"""aiohttp, imported without the machine's root certificates: to read them takes a good part of a command's start.

They are not needed, as every connection to an API server has its own TLS context (see `tls`). A connection with the
default context would trust no certificate.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["aiohttp"]


@contextmanager
def _no_root_certificates() -> Iterator[None]:
    context = ssl.SSLContext
    reading = context.load_default_certs, context.set_default_verify_paths
    context.load_default_certs = context.set_default_verify_paths = lambda *_: None  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        context.load_default_certs, context.set_default_verify_paths = reading  # type: ignore[method-assign]


with _no_root_certificates():
    import aiohttp
