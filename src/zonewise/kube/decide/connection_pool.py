"""Open connections of a server: which to close when they are too many, and which because they are idle. Pure.

The time is an argument. A connection is on probation until its client has proved who it is: the server closes it after
`FIRST_REQUEST_SECONDS` without a request, after `IDLE_SECONDS` without another, and when too many are on probation.
Then the oldest one of the address that has most goes, so a flood closes its own connections, and a client that shares
its address with the flood, as behind NAT, has as long to prove itself as the flood needs to fill the pool again.
Proven connections do not count. An address that proved itself may keep unused connections as long as used ones: an API
server that opened one too many sends its next review on it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

FIRST_REQUEST_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 180.0
"""Longer than the 90 s after which API servers close idle connections: the side that sends should be the one to close."""
MAX_ON_PROBATION: Final = 512
MAX_PROVEN_ADDRESSES: Final = 256


class ConnectionKey(NamedTuple):
    """Both ends of a connection: the client's first."""

    address: str
    port: int
    own_address: str = ""
    own_port: int = 0


class ConnectionPool:
    def __init__(self, limit: int = MAX_ON_PROBATION) -> None:
        self._limit = limit
        self._size = 0
        self._deadlines: dict[str, OrderedDict[ConnectionKey, float]] = {}
        """Of connections on probation, by the client's address, in the order of last use."""
        self._proven: OrderedDict[str, None] = OrderedDict()

    def add(self, key: ConnectionKey, now: float) -> ConnectionKey | None:
        """The connection to close because there is no room for one more."""
        self.remove(key)
        seconds = IDLE_SECONDS if key.address in self._proven else FIRST_REQUEST_SECONDS
        self._deadlines.setdefault(key.address, OrderedDict())[key] = now + seconds
        self._size += 1
        if self._size <= self._limit:
            return None
        busiest = max(self._deadlines, key=lambda address: len(self._deadlines[address]))
        oldest = next(iter(self._deadlines[busiest]))
        self.remove(oldest)
        return oldest

    def renew(self, key: ConnectionKey, now: float) -> None:
        """A request came; it says nothing about who sent it."""
        of_address = self._deadlines.get(key.address)
        if of_address is not None and key in of_address:
            of_address[key] = now + IDLE_SECONDS
            of_address.move_to_end(key)

    def prove(self, key: ConnectionKey) -> None:
        self.remove(key)
        self._proven[key.address] = None
        self._proven.move_to_end(key.address)
        if len(self._proven) > MAX_PROVEN_ADDRESSES:
            self._proven.popitem(last=False)

    def remove(self, key: ConnectionKey) -> None:
        of_address = self._deadlines.get(key.address)
        if of_address is not None and of_address.pop(key, None) is not None:
            self._size -= 1
            if not of_address:
                del self._deadlines[key.address]

    def expired(self, now: float) -> list[ConnectionKey]:
        """They are forgotten with the call."""
        late = [key for of_address in self._deadlines.values() for key, until in of_address.items() if until <= now]
        for key in late:
            self.remove(key)
        return late

    def __len__(self) -> int:
        return self._size
