"""Who carries a Service's traffic, by what the Service says and by what of Zonewise runs in the cluster. Pure.

The same rule serves `plan`, `explain`, `status`, the doctor and the dashboard, so that none of them takes kube-proxy for
the Zonewise proxy, or stock DNS for the Zonewise one, where another does not.
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

CARRYING: Final = f"{APP_NAME_LABEL} in ({APP_PROXY},{APP_DNS})"
"""Selects the workloads that `carriers_of` asks for."""


class DataPlane(StrEnum):
    """`Other`: labelled for a proxy that is not ours, whose ways nobody here knows. `Nobody`: an alias of a name elsewhere."""

    ZONEWISE_PROXY = "ZonewiseProxy"
    KUBE_PROXY = "KubeProxy"
    DNS = "DNS"
    STOCK_DNS = "StockDNS"
    OTHER = "Other"
    NOBODY = "Nobody"

    @property
    def is_dns(self) -> bool:
        """The Service is headless: its clients are told addresses, and choose."""
        return self in {DataPlane.DNS, DataPlane.STOCK_DNS}

    @property
    def is_ours(self) -> bool:
        """It does all that is decided."""
        return self in {DataPlane.ZONEWISE_PROXY, DataPlane.DNS}


@dataclass(frozen=True, slots=True)
class DataPlanes:
    """`all_services` where the Zonewise proxy runs in kube-proxy's place, `dns` where the Zonewise DNS server answers."""

    all_services: bool = False
    dns: bool = False

    def of(self, service: Service) -> DataPlane:
        if service.spec.type == "ExternalName":
            return DataPlane.NOBODY
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
    """What a person says of the carriers, None where nothing is said: then what runs tells."""

    all_services: bool | None = None
    dns: bool | None = None

    def over(self, found: DataPlanes) -> DataPlanes:
        return DataPlanes(
            found.all_services if self.all_services is None else self.all_services,
            found.dns if self.dns is None else self.dns,
        )


STOCK: Final = DataPlanes()
"""Nothing of Zonewise runs, or nobody knows of it."""
UNTOLD: Final = Overrides()


def carriers_of(workloads: Iterable[Deployment | DaemonSet]) -> DataPlanes:
    """As far as the workloads of Zonewise tell; what runs outside of the cluster does not show."""
    ours = [(found.metadata.labels.get(APP_NAME_LABEL), found) for found in workloads]
    return DataPlanes(
        all_services=any(name == APP_PROXY and _serves_all(found) for name, found in ours),
        dns=any(name == APP_DNS for name, _ in ours),
    )


def _serves_all(proxies: Deployment | DaemonSet) -> bool:
    return isinstance(proxies, DaemonSet) and any(
        "--all-services" in " ".join((*container.command, *container.args)).split()
        for container in proxies.spec.template.spec.containers
    )
