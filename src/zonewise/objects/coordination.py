"""Views of coordination.k8s.io: Leases."""

from __future__ import annotations

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource


class LeaseSpec(View, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


LEASES = Resource(view=Lease, kind="Lease", plural="leases", group="coordination.k8s.io")
