"""Caller keys: unguessable last segments of the webhooks' paths, by which API servers show that they are the callers.

Only webhook configurations name them, and tenants can't read those. If an API server can't reach the webhook, it shows
the whole address to the client of the request, so a key lives for an hour. All replicas accept a new key for a while
before a configuration carries it, and the old one until every configuration carries the new one.
This module says which keys are accepted, published and due, and draws new ones; the time is an argument.
`zonewise.kube.server.cert_manager` keeps them in the Secret.
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from zonewise.objects.stored import require_known
from zonewise.redaction import CALLER_KEY

KEYS_FIELD: Final = "caller-keys"
KEY: Final = re.compile(CALLER_KEY)
_VERSION: Final = 1
_VERSION_LINE: Final = re.compile(r"v([0-9]{1,9})")
_MOST: Final = 3


class CallerKey(NamedTuple):
    text: str
    made: dt.datetime

    def __repr__(self) -> str:
        return f"CallerKey(made={self.made})"  # never the key itself, in no log and no traceback


@dataclass(frozen=True, slots=True)
class KeyLifetimes:
    """`settling`: how long a key is only accepted before it is published, and how long the old one stays after that."""

    key: dt.timedelta = dt.timedelta(hours=1)
    settling: dt.timedelta = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CallerKeys:
    """Those that are accepted, oldest first. `is_torn`: what is stored was damaged, and is due to be written again."""

    members: tuple[CallerKey, ...] = ()
    is_torn: bool = False

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> CallerKeys:
        """Reads what `to_secret` wrote; absent means none yet. Of a damaged text, the lines with a whole key count.

        Raises NewerError.
        """
        if KEYS_FIELD not in data:
            return cls()
        head, *lines = data[KEYS_FIELD].decode(errors="replace").splitlines() or [""]
        version = _VERSION_LINE.fullmatch(head)
        if version is None:
            return cls(is_torn=True)
        require_known(int(version[1]), _VERSION, KEYS_FIELD)
        keys = tuple(key for line in lines if (key := _parse(line)))
        return cls(keys, is_torn=len(keys) < len(lines))

    def to_secret(self) -> dict[str, bytes]:
        lines = [f"v{_VERSION}", *(f"{key.text} {key.made.isoformat()}" for key in self.members)]
        return {KEYS_FIELD: "\n".join(lines).encode()}

    def accepts(self, text: str) -> bool:
        """In constant time: every key is compared to its end."""
        given = text.encode()
        return any([hmac.compare_digest(key.text.encode(), given) for key in self.members])  # noqa: C419 - no short cut

    def publishable(self, now: dt.datetime, lifetimes: KeyLifetimes) -> tuple[CallerKey, ...]:
        """The newest key that all replicas have had time to read, or the oldest; then those that are newer still.

        A configuration with one of these is up to date: another replica's clock may be ahead.
        """
        settled = [index for index, key in enumerate(self.members) if now - key.made >= lifetimes.settling]
        return self.members[settled[-1] if settled else 0 :]

    def renewal_due(self, now: dt.datetime, lifetimes: KeyLifetimes, carried: str = "") -> bool:
        return self.renewed(now, lifetimes, carried) is not self

    def renewed(self, now: dt.datetime, lifetimes: KeyLifetimes, carried: str = "") -> CallerKeys:
        """With a successor once it is due, and without the old keys once all configurations have carried the newest.

        `carried` is the key that they carry for certain. It is empty after a start: while we were away an API server
        may have shown the key, so a successor is due sooner. There is none while two keys wait to be carried.
        """
        if self.is_torn:
            return CallerKeys(self.members).renewed(now, lifetimes, carried)
        age = now - self.members[-1].made if self.members else dt.timedelta.max
        settled = 2 * lifetimes.settling
        if age >= (lifetimes.key if carried else settled) and len(self.members) < _MOST:
            return CallerKeys((*self.members, CallerKey(secrets.token_hex(32), now)))
        is_over = len(self.members) > 1 and carried == self.members[-1].text and age >= settled
        return CallerKeys(self.members[-1:]) if is_over else self


def _parse(line: str) -> CallerKey | None:
    text, _, made = line.partition(" ")
    try:
        moment = dt.datetime.fromisoformat(made)
    except ValueError:
        return None
    return CallerKey(text, moment) if KEY.fullmatch(text) and moment.tzinfo is not None else None
