"""Certificate renewal for our own servers: authorities and caller keys in a Secret, the leaf in a live TLS context.

All replicas share one Secret. The first replica that finds an authority or a key due writes it, the others read it.
Every replica signs its own leaf, which never leaves its memory. One step, `renew`, is safe to run at any time: it reads
the Secret afresh, publishes its CAs and the caller key in the webhook configurations, and only then may serve under it.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import Gauge

from zonewise.kube.client.client import Client
from zonewise.kube.clock import utc_now
from zonewise.kube.server.caller_keys import CallerKeys
from zonewise.kube.server.certificates import Authorities, CertificateError, Leaf, Lifetimes, leaf_due
from zonewise.kube.server.tls import load_pem, server_context
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.log import get_logger
from zonewise.objects import SECRETS, Key, Secret
from zonewise.objects.stored import NewerError

_log = get_logger(__name__)

CHECK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_ATTEMPTS: Final = 5
_LEAST_PAUSE_SECONDS: Final = 0.2  # limits the rate of writes when another program resets a configuration
_UNKNOWN_KEY_CHECK_SECONDS: Final = 10.0
"""How often an unknown key may make us read the Secret: another replica may have published one that we missed."""
_EXPIRY: Final = Gauge("zonewise_certificate_expiry_seconds", "When it ends, in seconds of Unix time", ["certificate"])
_LIFETIMES: Final = Lifetimes()


def install(context: ssl.SSLContext, leaf: Leaf) -> None:
    load_pem(context, leaf.certificate_pem + leaf.key_pem)


class SharedAuthorities:
    """The authorities and caller keys in a Secret. The first replica makes what is absent and renews what is due."""

    def __init__(self, client: Client, secret: Key, lifetimes: Lifetimes) -> None:
        self._client = client
        self._secret = secret
        self._lifetimes = lifetimes
        self._known = Authorities()

    async def current(self, now: dt.datetime, carried: str = "") -> Authorities:
        """What the Secret holds after any renewal due at `now`; `carried` is the key that configurations carry."""
        for _ in range(_ATTEMPTS):
            try:
                self._known = await self._read_or_renew(now, carried)
            except Conflict:
                continue  # another replica was first: read what it wrote
            else:
                return self._known
        raise CertificateError(
            f"secret {self._secret} changes faster than it can be read; does another program write to it?"
        )

    async def _read_or_renew(self, now: dt.datetime, carried: str) -> Authorities:
        try:
            secret = await self._client.get(SECRETS, self._secret.name, self._secret.namespace)
        except NotFound:
            # A Secret deleted by mistake is restored as it was, so that the leaves in use stay trusted. To be rid of an
            # authority, delete the Secret while no replica runs.
            renewed = self._known.renewed(now, self._lifetimes, carried)
            await self._client.create(SECRETS, self._body(renewed), self._secret.namespace)
            return self._written(renewed)
        stored = self._stored(secret)
        if not stored.renewal_due(now, self._lifetimes, carried):
            return stored
        renewed = stored.renewed(now, self._lifetimes, carried)
        body = self._body(renewed, secret.metadata.resource_version)
        await self._client.patch(SECRETS, self._secret.name, MergePatch(body), self._secret.namespace)
        return self._written(renewed)

    def _stored(self, secret: Secret) -> Authorities:
        try:
            stored = Authorities.from_secret({field: base64.b64decode(text) for field, text in secret.data.items()})
        except NewerError as error:
            raise CertificateError(f"secret {self._secret}: {error}") from error
        except CertificateError as error:
            raise CertificateError(f"secret {self._secret}: {error}; delete it to have it recreated") from error
        return self._with_whole_keys(stored) if stored.keys.is_torn else stored

    def _with_whole_keys(self, stored: Authorities) -> Authorities:
        """Damaged keys are restored as they were, if this replica knows them: configurations carry one of them."""
        keys = self._known.keys.members or stored.keys.members
        _log.warning("caller keys damaged, replacing them", name=str(self._secret), kept=len(keys))
        return replace(stored, keys=CallerKeys(keys, is_torn=True))

    def _body(self, authorities: Authorities, resource_version: str = "") -> dict[str, object]:
        metadata = {"name": self._secret.name, "namespace": self._secret.namespace}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        data = {field: base64.b64encode(pem).decode() for field, pem in authorities.to_secret().items()}
        return {"apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "metadata": metadata, "data": data}

    def _written(self, authorities: Authorities) -> Authorities:
        newest = authorities.members[-1]
        numbers = {"count": len(authorities.members), "caller_keys": len(authorities.keys.members)}
        _log.info("authorities written", name=str(self._secret), **numbers, expires=newest.expires)
        return authorities


class CertManager:
    """`context` always holds a certificate that API servers trust, from the first `renew` on."""

    def __init__(
        self,
        client: Client,
        secret: Key,
        hosts: Sequence[str],
        trust: Callable[[bytes, Sequence[str]], Awaitable[None]],
        *,
        client_ca: Path | None = None,
        lifetimes: Lifetimes = _LIFETIMES,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        """`trust` tells API servers the bundle to trust and the caller key to use, such as `CaInjector.inject`."""
        self.context = server_context(client_ca)
        self._authorities = SharedAuthorities(client, secret, lifetimes)
        self._hosts = tuple(hosts)
        self._trust = trust
        self._lifetimes = lifetimes
        self._clock = clock
        self._trusted = Authorities()
        self._trusted_since: dict[str, dt.datetime] = {}
        self._leaf: Leaf | None = None
        self._keys = CallerKeys()
        self._carried = ""
        self._unknown_key_at = float("-inf")
        self._woken = asyncio.Event()

    @property
    def caller_key(self) -> str:
        """The key that webhook configurations should carry."""
        return self._publishable()[0]

    def accepts(self, key: str) -> bool:
        """Whether a caller with this key is an API server that read our webhook configuration."""
        if self._keys.accepts(key):
            return True
        now = asyncio.get_running_loop().time()
        if now - self._unknown_key_at >= _UNKNOWN_KEY_CHECK_SECONDS:
            self._unknown_key_at = now
            self.wake()
        return False

    def _publishable(self) -> list[str]:
        return [key.text for key in self._keys.publishable(self._clock(), self._lifetimes.caller_keys)]

    def wake(self) -> None:
        """Have `run` look at once."""
        self._woken.set()

    async def run(self) -> None:
        """Renews what is due until cancelled; a failure is retried long before anything expires."""
        while True:
            self._woken.clear()
            pause_seconds = CHECK_SECONDS
            try:
                await self.renew()
            except (ApiError, CertificateError) as error:
                _log.warning("certificates not renewed", error=str(error), retry_seconds=_RETRY_SECONDS)
                pause_seconds = _RETRY_SECONDS
            await self._pause(pause_seconds)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(_LEAST_PAUSE_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def renew(self) -> None:
        """Also when the server can't be asked, the leaf is renewed from what was trusted last."""
        now = self._clock()
        try:
            authorities = await self._authorities.current(now, self._carried)
            self._keys = authorities.keys
            keys = self._publishable()
            await self._trust(authorities.bundle_pem, keys)
            self._carried = keys[0]
            self._note_trusted(authorities, now)
        finally:
            if self._trusted.members:
                self._renew_leaf(now)

    def _note_trusted(self, authorities: Authorities, now: dt.datetime) -> None:
        self._trusted = authorities
        self._trusted_since = {
            authority.fingerprint: self._trusted_since.get(authority.fingerprint, now)
            for authority in authorities.members
        }
        _EXPIRY.labels("authority").set(authorities.members[-1].expires.timestamp())

    def _renew_leaf(self, now: dt.datetime) -> None:
        signer = self._trusted.signer(self._trusted_since, now, self._lifetimes)
        if not leaf_due(self._leaf, signer, now, self._lifetimes):
            return
        leaf = signer.issue(self._hosts, now, self._lifetimes.leaf)
        install(self.context, leaf)
        self._leaf = leaf
        _EXPIRY.labels("leaf").set(leaf.expires.timestamp())
        _log.info("serving certificate renewed", hosts=self._hosts, expires=leaf.expires, authority=leaf.authority[:16])
