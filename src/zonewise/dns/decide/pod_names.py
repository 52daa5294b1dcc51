"""Records of pods by address: `10-0-0-7.namespace.pod.domain`, for all addresses or only for those of known pods."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from zonewise.dns.wire import records
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import undashed
from zonewise.dns.wire.records import WireAnswer


class PodNameRecords(StrEnum):
    """CoreDNS' words. Insecure ones tell nothing of the cluster: any address is answered with itself."""

    DISABLED = "disabled"
    INSECURE = "insecure"
    VERIFIED = "verified"


def pod_answer(label: bytes, ttl: int) -> Mapping[int, WireAnswer] | None:
    """The only record of a pod's name; None for a label that stands for no address."""
    address = undashed(label.decode("ascii", "replace"))
    if address is None:
        return None
    return {RecordType.A if address.version == 4 else RecordType.AAAA: records.addresses([address.packed], ttl)}
