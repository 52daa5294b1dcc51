"""`zonewise csi`: the Ceph CSI driver's processes and administration of volumes, with one module per command."""

from __future__ import annotations

import click

from zonewise.cli.lazy_group import LazyGroup

MEMBERS = {
    "controller": ("zonewise.cli.csi_server:controller", "Provision volumes in the pool of the pod's domain."),
    "doctor": ("zonewise.cli.csi_doctor:doctor", "Find orphaned and unfinished volumes in Ceph, and remove them."),
    "giveback": ("zonewise.cli.csi_takeover:giveback", "End the takeover of a domain that has recovered."),
    "journal": ("zonewise.cli.csi_journal:journal", "List volumes and snapshots from the journals in Ceph."),
    "node": ("zonewise.cli.csi_server:node", "Mount volumes on this node and advertise its domains."),
    "takeover": ("zonewise.cli.csi_takeover:takeover", "Let nodes of other domains use the volumes of a failed one."),
}
"""Command name to its location and its help line."""


@click.group(
    cls=LazyGroup,
    members=MEMBERS,
    epilog="Example: zonewise csi takeover zone=zone-a zone-b zone-c",
)
def csi() -> None:
    """Ceph RBD and CephFS volumes, provisioned in the pod's domain."""
