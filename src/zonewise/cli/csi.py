"""`zonewise csi`: the Ceph CSI driver's processes, and what people do about volumes. A module per command."""

from __future__ import annotations

import click

from zonewise.cli.lazy_group import LazyGroup

MEMBERS = {
    "controller": ("zonewise.cli.csi_server:controller", "Provision volumes in the pool of the pod's domain."),
    "doctor": ("zonewise.cli.csi_doctor:doctor", "Find what is left of volumes that nobody has, and remove it."),
    "giveback": ("zonewise.cli.csi_takeover:giveback", "Give a domain that is back to its own nodes."),
    "journal": ("zonewise.cli.csi_journal:journal", "Print which names were given to which volumes and snapshots."),
    "node": ("zonewise.cli.csi_server:node", "Mount volumes on this node, and say in which domains it is."),
    "takeover": ("zonewise.cli.csi_takeover:takeover", "Let other domains' nodes use the volumes of one that failed."),
}
"""By name: where the command lives, and its line in the help."""


@click.group(
    cls=LazyGroup,
    members=MEMBERS,
    epilog="Example: zonewise csi takeover zone=zone-a zone-b zone-c",
)
def csi() -> None:
    """Ceph RBD and CephFS volumes, provisioned where the pod is."""
