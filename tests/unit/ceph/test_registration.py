"""Registration with the kubelet, called as the kubelet calls it; tests/network has a real one."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.waiting import eventually
from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.node import registration
from zonewise.ceph.node.registration import RegistrationService, registering
from zonewise.ceph.spec import pluginregistration_pb2 as spec
from zonewise.kube.server.health import Health

ENDPOINT = "unix:///var/lib/kubelet/plugins/ceph.zonewise.dev/csi.sock"
Call = Callable[[str, Any, Any], Any]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    async with grpc.aio.insecure_channel(f"unix:{socket(tmp_path)}") as channel:

        async def call(method: str, request: Any, response: Any) -> Any:
            path = f"/pluginregistration.Registration/{method}"
            rpc = channel.unary_unary(path, type(request).SerializeToString, response.FromString)
            return await rpc(request, timeout=10, wait_for_ready=True)

        yield call


def socket(directory: Path) -> Path:
    return directory / f"{CSI_DRIVER}-reg.sock"


def failed(health: Health) -> str:
    return next((found.trouble or "" for found in health.ready().findings if found.check == "registration"), "absent")


async def test_driver_is_not_ready_before_the_kubelet_has_registered_it(tmp_path: Path, call: Call) -> None:
    health = Health()
    async with registering(tmp_path, ENDPOINT, health):
        info = await call("GetInfo", spec.InfoRequest(), spec.PluginInfo)
        assert (info.type, info.name, info.supported_versions) == ("CSIPlugin", CSI_DRIVER, ["1.0.0"])
        assert info.endpoint == ENDPOINT.removeprefix("unix://")
        assert "not registered the driver yet" in failed(health)
        refusal = spec.RegistrationStatus(plugin_registered=False, error="wrong version")
        await call("NotifyRegistrationStatus", refusal, spec.RegistrationStatusResponse)
        assert failed(health) == "the kubelet did not register the driver: wrong version"
        done = spec.RegistrationStatus(plugin_registered=True)
        await call("NotifyRegistrationStatus", done, spec.RegistrationStatusResponse)
        assert failed(health) == ""
    assert not socket(tmp_path).exists()


async def test_sidecar_that_registers_the_driver_is_succeeded(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_RETRY_SECONDS", 0.01)
    sidecar = GrpcServer(str(socket(tmp_path)), {"Registration": RegistrationService(Path("/sidecar"))}, spec=spec)
    sidecar.start()
    health = Health()
    async with registering(tmp_path, ENDPOINT, health):
        assert failed(health) == "absent"
        assert (await call("GetInfo", spec.InfoRequest(), spec.PluginInfo)).endpoint == "/sidecar"
        sidecar.stop(0)
        await eventually(lambda: "not registered the driver yet" in failed(health))
        assert socket(tmp_path).exists()
    assert not socket(tmp_path).exists()


async def test_sidecar_that_goes_on_keeps_its_socket(tmp_path: Path, call: Call) -> None:
    sidecar = GrpcServer(str(socket(tmp_path)), {"Registration": RegistrationService(Path("/sidecar"))}, spec=spec)
    sidecar.start()
    try:
        async with registering(tmp_path, ENDPOINT, Health()):
            pass
        assert (await call("GetInfo", spec.InfoRequest(), spec.PluginInfo)).endpoint == "/sidecar"
    finally:
        sidecar.stop(0)


async def test_socket_of_a_killed_process_is_replaced(tmp_path: Path, call: Call) -> None:
    import socket as sockets  # noqa: PLC0415 - the name is taken

    with sockets.socket(sockets.AF_UNIX) as killed:
        killed.bind(str(socket(tmp_path)))
    async with registering(tmp_path, ENDPOINT, Health()):
        assert (await call("GetInfo", spec.InfoRequest(), spec.PluginInfo)).name == CSI_DRIVER
