"""Registration of the driver with the kubelet, which watches a directory for sockets of plugins.

The kubelet asks each new socket who serves it, calls the driver there, adds it to the node's CSINode object, and reports
the outcome. It does so again after a restart of either side, and drops the driver when the socket is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.grpc_server import GrpcServer, SocketInUseError, socket_path
from zonewise.ceph.spec import pluginregistration_pb2 as spec
from zonewise.kube.server.health import Health
from zonewise.log import get_logger

_log = get_logger(__name__)

_CSI_PLUGIN: Final = "CSIPlugin"
_CSI_VERSIONS: Final = ("1.0.0",)
"""Kubelets compare the major version only."""
_STOP_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0


class RegistrationService:
    """`endpoint`: the driver's socket, as the kubelet sees it."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self._trouble: str | None = "the kubelet has not registered the driver yet"

    def get_info(self, _request: spec.InfoRequest) -> spec.PluginInfo:
        return spec.PluginInfo(
            type=_CSI_PLUGIN, name=CSI_DRIVER, endpoint=str(self._endpoint), supported_versions=_CSI_VERSIONS
        )

    def notify_registration_status(self, request: spec.RegistrationStatus) -> spec.RegistrationStatusResponse:
        """Kubelets try again by themselves after a failure."""
        if request.plugin_registered:
            self._trouble = None
            _log.info("registered with the kubelet", driver=CSI_DRIVER, endpoint=str(self._endpoint))
        else:
            self._trouble = f"the kubelet did not register the driver: {request.error}"
            _log.warning("not registered with the kubelet", driver=CSI_DRIVER, error=request.error)
        return spec.RegistrationStatusResponse()

    def trouble(self) -> str | None:
        return self._trouble


@asynccontextmanager
async def registering(directory: Path, endpoint: str, health: Health) -> AsyncIterator[None]:
    """Offer the driver in the kubelet's `directory`. While a sidecar (node-driver-registrar) does so, wait for its end."""
    service = RegistrationService(socket_path(endpoint))
    server = GrpcServer(str(directory / f"{CSI_DRIVER}-reg.sock"), {"Registration": service}, spec=spec, threads=2)
    succession = None
    if not await _offer(server, service, health):
        _log.info("another process registers the driver", socket=str(server.path))
        succession = asyncio.create_task(_succeed(server, service, health))
    try:
        yield
    finally:
        if succession is not None:  # first, or it could begin to serve after the check
            succession.cancel()
        if server.serves:
            await asyncio.shield(asyncio.to_thread(server.stop, _STOP_SECONDS))


async def _succeed(server: GrpcServer, service: RegistrationService, health: Health) -> None:
    offered = False
    while not offered:
        await asyncio.sleep(_RETRY_SECONDS)
        offered = await _offer(server, service, health)


async def _offer(server: GrpcServer, service: RegistrationService, health: Health) -> bool:
    """False if another process serves the socket."""
    try:
        await asyncio.to_thread(server.start)
    except SocketInUseError:
        return False
    health.add_ready("registration", service.trouble)
    return True
