"""What an uninstall takes away is what the programs write: both say it, because the room of installing builds on no other."""

from __future__ import annotations

from zonewise.ceph import app
from zonewise.diagnostics.decide.status import assemble, storage
from zonewise.disruption.controller import scaledown
from zonewise.disruption.decide import pods
from zonewise.install import remove
from zonewise.routing.weights_annotation import WEIGHTS
from zonewise.slices.decide import metadata, names


def test_every_mark_is_known_to_the_uninstall() -> None:
    assert remove.STATE == names.STATE
    assert (remove.GRANTED, remove.GRANTS_MANAGER) == (pods.GRANTED, scaledown.FIELD_MANAGER)
    assert remove.SLICE_MARKS == {"labels": (metadata.CONSUMER,), "annotations": (metadata.STARTED, WEIGHTS)}
    assert remove.NODE_LABELS == (storage.TOPOLOGY, storage.TAKEOVER)
    assert set(remove.LEASES_MADE) == {*assemble.LEASES, app.LEASE}
