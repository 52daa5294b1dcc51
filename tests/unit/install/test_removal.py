"""What an uninstall takes away is what the programs write: both say it, because the room of installing builds on no other."""

from __future__ import annotations

from zonewise.ceph import serving
from zonewise.disruption import pods, scaledown
from zonewise.install import removal
from zonewise.routing.writtenweights import WEIGHTS
from zonewise.seeing import status, storage
from zonewise.slices import metadata, names


def test_every_mark_is_known_to_the_uninstall() -> None:
    assert removal.STATE == names.STATE
    assert (removal.GRANTED, removal.GRANTS_MANAGER) == (pods.GRANTED, scaledown.FIELD_MANAGER)
    assert removal.SLICE_MARKS == {"labels": (metadata.CONSUMER,), "annotations": (metadata.STARTED, WEIGHTS)}
    assert removal.NODE_LABELS == (storage.TOPOLOGY, storage.TAKEOVER)
    assert set(removal.LEASES_MADE) == {*status.LEASES, serving.LEASE}
