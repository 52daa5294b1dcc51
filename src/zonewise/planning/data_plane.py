"""The data plane of a Service: the Zonewise proxy, kube-proxy, or DNS. Pure.

It follows from the Service and from the workloads of Zonewise that run in the cluster. `plan`, `explain`, `status`,
`doctor` and the dashboard all use this rule, so they agree on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from zonewise.api.names import APP_DNS, APP_NAME_LABEL, APP_PROXY, PROXY_NAME, PROXY_NAME_LABEL
from zonewise.objects import Service
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.slices.decide.families import is_headless

DATA_PLANE_SELECTOR: Final = f"{APP_NAME_LABEL} in ({APP_PROXY},{APP_DNS})"
"""Selects the workloads that `find_data_planes` needs."""


class DataPlane(StrEnum):
    """`Other`: labelled for a third-party proxy, whose rules are unknown. `Nobody`: an alias of an external name."""

    ZONEWISE_PROXY = "ZonewiseProxy"
    KUBE_PROXY = "KubeProxy"
    DNS = "DNS"
    STOCK_DNS = "StockDNS"
    OTHER = "Other"
    NONE = "Nobody"

    @property
    def is_dns(self) -> bool:
        """The Service is headless: clients get addresses and choose one."""
        return self in {DataPlane.DNS, DataPlane.STOCK_DNS}

    @property
    def is_ours(self) -> bool:
        """It implements every decision in full."""
        return self in {DataPlane.ZONEWISE_PROXY, DataPlane.DNS}


@dataclass(frozen=True, slots=True)
class DataPlanes:
    """`all_services`: the Zonewise proxy replaces kube-proxy. `dns`: the Zonewise DNS server answers."""

    all_services: bool = False
    dns: bool = False

    def of(self, service: Service) -> DataPlane:
        if service.spec.type == "ExternalName":
            return DataPlane.NONE
        if is_headless(service):
            return DataPlane.DNS if self.dns else DataPlane.STOCK_DNS
        match service.metadata.labels.get(PROXY_NAME_LABEL):
            case None:
                return DataPlane.ZONEWISE_PROXY if self.all_services else DataPlane.KUBE_PROXY
            case str(name) if name == PROXY_NAME:
                return DataPlane.ZONEWISE_PROXY
            case _:
                return DataPlane.OTHER


@dataclass(frozen=True, slots=True)
class Overrides:
    """Data planes that the user states; None where the workloads in the cluster decide."""

    all_services: bool | None = None
    dns: bool | None = None

    def apply_to(self, detected: DataPlanes) -> DataPlanes:
        return DataPlanes(
            detected.all_services if self.all_services is None else self.all_services,
            detected.dns if self.dns is None else self.dns,
        )


STOCK: Final = DataPlanes()
"""No Zonewise proxy or DNS server runs, or none is known."""
NO_OVERRIDES: Final = Overrides()


def find_data_planes(workloads: Iterable[Deployment | DaemonSet]) -> DataPlanes:
    """By the workloads of Zonewise. Programs that run outside of the cluster are not detected."""
    by_app = [(workload.metadata.labels.get(APP_NAME_LABEL), workload) for workload in workloads]
    return DataPlanes(
        all_services=any(app == APP_PROXY and _serves_all(workload) for app, workload in by_app),
        dns=any(app == APP_DNS for app, _ in by_app),
    )


def _serves_all(proxies: Deployment | DaemonSet) -> bool:
    return isinstance(proxies, DaemonSet) and any(
        "--all-services" in " ".join((*container.command, *container.args)).split()
        for container in proxies.spec.template.spec.containers
    )
