"""CSI identity service: name, capabilities and readiness of the plugin."""

from __future__ import annotations

from typing import Final

from zonewise import __version__
from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.spec import csi_pb2 as csi

_SERVICES: Final = (
    csi.PluginCapability.Service.CONTROLLER_SERVICE,
    csi.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS,
)


class IdentityService:
    def get_plugin_info(self, _request: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        return csi.GetPluginInfoResponse(name=CSI_DRIVER, vendor_version=__version__)

    def get_plugin_capabilities(self, _request: csi.GetPluginCapabilitiesRequest) -> csi.GetPluginCapabilitiesResponse:
        service, expansion = csi.PluginCapability.Service, csi.PluginCapability.VolumeExpansion
        capabilities = [csi.PluginCapability(service=service(type=name)) for name in _SERVICES]
        capabilities.append(csi.PluginCapability(volume_expansion=expansion(type=expansion.ONLINE)))
        return csi.GetPluginCapabilitiesResponse(capabilities=capabilities)

    def probe(self, _request: csi.ProbeRequest) -> csi.ProbeResponse:
        response = csi.ProbeResponse()
        response.ready.value = True
        return response
