"""Which pod has which address, kept pod by pod: what a change of one pod changes, whatever the number of others.

The catalog keeps it where clients are found by pods, or pods have records of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from zonewise.objects import Key


class PodHolder(NamedTuple):
    """The addresses of one pod, and its node."""

    addresses: tuple[bytes, ...]
    node: str


class AddressChange(NamedTuple):
    """An address that a pod has now; the node is empty where nobody has it any more. `loser` is who had it before."""

    address: bytes
    node: str
    loser: Key | None = None


NOTHING: Final = PodHolder((), "")


class PodAddresses:
    """An address belongs to who got it last: a pod that ended may be listed a while longer than its address is its own."""

    def __init__(self) -> None:
        self._held: dict[Key, PodHolder] = {}
        self._owners: dict[bytes, Key] = {}

    def __len__(self) -> int:
        return len(self._held)

    def set(self, pod: Key, addresses: Sequence[bytes], node: str) -> list[AddressChange]:
        """A pod without addresses is one that is gone. What it gives back comes first."""
        old = self._held.pop(pod, NOTHING)
        new = PodHolder(tuple(addresses), node)
        if new.addresses:
            self._held[pod] = new
        given_back = [self._give_back(address) for address in old.addresses if self._is_left(pod, address, new)]
        return [*given_back, *self._take(pod, new, old)]

    def all(self) -> Iterator[tuple[Key, AddressChange]]:
        for address, pod in self._owners.items():
            yield pod, AddressChange(address, self._held[pod].node)

    def _is_left(self, pod: Key, address: bytes, new: PodHolder) -> bool:
        return address not in new.addresses and self._owners.get(address) == pod

    def _give_back(self, address: bytes) -> AddressChange:
        del self._owners[address]
        return AddressChange(address, "")

    def _take(self, pod: Key, new: PodHolder, old: PodHolder) -> Iterator[AddressChange]:
        for address in new.addresses:
            if address not in old.addresses or new.node != old.node:
                loser = self._owners.get(address)
                self._owners[address] = pod
                yield AddressChange(address, new.node, loser)
