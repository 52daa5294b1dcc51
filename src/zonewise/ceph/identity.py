"""The identity service: who this plugin is, what it can, and whether it is ready."""

from __future__ import annotations

from collections.abc import Callable

from zonewise import __version__
from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.spec import csi_pb2 as csi

_SERVICES = (
    csi.PluginCapability.Service.CONTROLLER_SERVICE,
    csi.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS,
)


class IdentityService:
    def __init__(self, is_ready: Callable[[], bool] = lambda: True, name: str = CSI_DRIVER) -> None:
        self._is_ready = is_ready
        self._name = name

    def get_plugin_info(self, _request: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        return csi.GetPluginInfoResponse(name=self._name, vendor_version=__version__)

    def get_plugin_capabilities(self, _request: csi.GetPluginCapabilitiesRequest) -> csi.GetPluginCapabilitiesResponse:
        service, expansion = csi.PluginCapability.Service, csi.PluginCapability.VolumeExpansion
        said = [csi.PluginCapability(service=service(type=each)) for each in _SERVICES]
        said.append(csi.PluginCapability(volume_expansion=expansion(type=expansion.ONLINE)))
        return csi.GetPluginCapabilitiesResponse(capabilities=said)

    def probe(self, _request: csi.ProbeRequest) -> csi.ProbeResponse:
        response = csi.ProbeResponse()
        response.ready.value = self._is_ready()
        return response
