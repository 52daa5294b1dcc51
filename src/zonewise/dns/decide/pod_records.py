"""Pods in DNS: records named after their addresses, and the pod that has each address.

A pod's name is `10-0-0-7.namespace.pod.domain`. The zone tracks pods where clients are located by pod, or where only
addresses of running pods have records. A change of one pod costs the same however many others there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from zonewise.dns.wire import records
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import undashed
from zonewise.dns.wire.records import WireAnswer

if TYPE_CHECKING:  # workers load this module, but no Kubernetes objects
    from zonewise.objects import Key


class PodNameRecords(StrEnum):
    """CoreDNS' modes. INSECURE answers any address with itself, whether a pod has it or not."""

    DISABLED = "disabled"
    INSECURE = "insecure"
    VERIFIED = "verified"


def pod_answer(label: bytes, ttl: int) -> Mapping[int, WireAnswer] | None:
    """The only record of a pod's name; None for a label that is no address."""
    address = undashed(label.decode("ascii", "replace"))
    if address is None:
        return None
    return {RecordType.A if address.version == 4 else RecordType.AAAA: records.addresses([address.packed], ttl)}


class PodLocation(NamedTuple):
    addresses: tuple[bytes, ...]
    node: str


class AddressChange(NamedTuple):
    """An address and the node of its pod, empty if no pod has it any more. `previous` is the pod that had it before."""

    address: bytes
    node: str
    previous: Key | None = None


_NO_LOCATION: Final = PodLocation((), "")


class PodAddresses:
    """An address belongs to the pod that got it last: the API may list an ended pod after its address was reused."""

    def __init__(self) -> None:
        self._locations: dict[Key, PodLocation] = {}
        self._owners: dict[bytes, Key] = {}

    def set(self, pod: Key, addresses: Sequence[bytes], node: str) -> list[AddressChange]:
        """A pod without addresses is deleted. Released addresses come first."""
        old = self._locations.pop(pod, _NO_LOCATION)
        new = PodLocation(tuple(addresses), node)
        if new.addresses:
            self._locations[pod] = new
        released = [self._release(address) for address in old.addresses if self._is_released(pod, address, new)]
        return [*released, *self._acquire(pod, new, old)]

    def all(self) -> Iterator[tuple[Key, AddressChange]]:
        for address, pod in self._owners.items():
            yield pod, AddressChange(address, self._locations[pod].node)

    def _is_released(self, pod: Key, address: bytes, new: PodLocation) -> bool:
        return address not in new.addresses and self._owners.get(address) == pod

    def _release(self, address: bytes) -> AddressChange:
        del self._owners[address]
        return AddressChange(address, "")

    def _acquire(self, pod: Key, new: PodLocation, old: PodLocation) -> Iterator[AddressChange]:
        for address in new.addresses:
            if address not in old.addresses or new.node != old.node:
                previous = self._owners.get(address)
                self._owners[address] = pod
                yield AddressChange(address, new.node, previous)
