"""Fair shares of what all clients forward through: no client takes what others need.

A client may hold as many places as are free, the rule by which switches share a packet buffer. One client alone gets
half of them, `n` greedy ones get one part in `n + 1` each, and as much is left for the next client. No list of
greedy clients is needed.

A question that no upstream answers holds its slot until it times out. A client at its share loses its oldest such
question to its next one, once the oldest had `GRACE_SECONDS` to be answered. A question that other clients wait for,
too, is not given up for that. When all slots are taken, a client without any gets the oldest question of one client
alone; one that several wait for only if there is no other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from zonewise.dns.decide.forward_cache import ForwardQuestion

GRACE_SECONDS: Final = 0.5
"""Upstreams answer nearly all questions within it, those included that they have to ask others for."""


class FairShare:
    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._held: dict[bytes, int] = {}
        """By client."""

    def holds(self, client: bytes) -> bool:
        return client in self._held

    def take(self, client: bytes) -> bool:
        held = self._held.get(client, 0)
        if held >= self._free:
            return False
        self._held[client] = held + 1
        self._free -= 1
        return True

    def give_back(self, client: bytes) -> None:
        self._free += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]


class SlotDecision(NamedTuple):
    admitted: bool
    given_up: ForwardQuestion | None = None
    """An older question to be ended for it."""


class _Slot(NamedTuple):
    client: bytes
    since: float


class ForwardSlots:
    """Questions under way, and the client that each is counted for. Times are seconds of one clock."""

    def __init__(self, capacity: int) -> None:
        self._shares = FairShare(capacity)
        self._slots: dict[ForwardQuestion, _Slot] = {}
        self._alone: dict[bytes, dict[ForwardQuestion, None]] = {}
        """By client: questions that only it waits for, the oldest first."""

    def enter(self, question: ForwardQuestion, client: bytes, now: float) -> SlotDecision:
        given_up = None
        if not self._shares.take(client):
            given_up = self._oldest(client)
            if given_up is None or now - self._slots[given_up].since < GRACE_SECONDS:
                return SlotDecision(admitted=False)
            self.leave(given_up)
            if not self._shares.take(client):  # its share has become smaller
                return SlotDecision(admitted=False, given_up=given_up)
        self._slots[question] = _Slot(client, now)
        self._alone.setdefault(client, {})[question] = None
        return SlotDecision(admitted=True, given_up=given_up)

    def join(self, question: ForwardQuestion, client: bytes) -> None:
        """A client asks what is under way."""
        slot = self._slots.get(question)
        if slot and slot.client != client:
            self._no_longer_alone(question, slot.client)

    def leave(self, question: ForwardQuestion) -> None:
        """It was answered, or given up before."""
        if slot := self._slots.pop(question, None):
            self._shares.give_back(slot.client)
            self._no_longer_alone(question, slot.client)

    def _oldest(self, client: bytes) -> ForwardQuestion | None:
        """The client's own; for a client that holds none, when all are taken, anybody's."""
        if self._shares.holds(client):
            return next(iter(self._alone.get(client, {})), None)
        of_one = (asked for asked, slot in self._slots.items() if asked in self._alone.get(slot.client, ()))
        return next(of_one, next(iter(self._slots), None))

    def _no_longer_alone(self, question: ForwardQuestion, client: bytes) -> None:
        alone = self._alone.get(client, {})
        alone.pop(question, None)
        if not alone:
            self._alone.pop(client, None)
