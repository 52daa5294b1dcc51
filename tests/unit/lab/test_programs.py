from pathlib import Path

import msgspec
import pytest

from zonewise.lab.controlplane import programs
from zonewise.lab.controlplane.programs import ControlPlaneConfig, ControlPlaneFiles, Program

LAYOUT = ControlPlaneFiles(Path("/lab"), Path("/dev/shm/data"), Path("/bin"), 3)
CONTROLLERS = {
    "all": ("*", True),
    "all but another": ("*,-endpointslice-controller", True),
    "all but it": ("*,-serviceaccount-controller", False),
    "only it": ("serviceaccount-controller", True),
    "only another": ("namespace-controller", False),
}


@pytest.mark.parametrize(("controllers", "expected"), CONTROLLERS.values(), ids=CONTROLLERS.keys())
def test_controllers_setting_selects_a_controller(controllers: str, expected: bool) -> None:
    settings = ControlPlaneConfig(version="v1.36.3", controllers=controllers)
    assert settings.runs("serviceaccount-controller") is expected


def test_no_controller_runs_without_the_controller_manager() -> None:
    settings = ControlPlaneConfig(version="v1.36.3", programs=(Program.ETCD, Program.APISERVER))
    assert not settings.runs("serviceaccount-controller")


def test_additional_flags_come_last() -> None:
    settings = ControlPlaneConfig(version="v1.36.3", flags={Program.APISERVER: ("--profiling=true",)})
    command = programs.command(Program.APISERVER, settings, LAYOUT)
    assert command[0] == "/bin/kube-apiserver"
    assert command[-1] == "--profiling=true"
    assert command.index("--profiling=false") < len(command) - 1


ADDRESSES = {
    "loopback can't be advertised": ("127.0.0.1", "--endpoint-reconciler-type=none"),
    "a lab's address is": ("100.64.0.1", "--advertise-address=100.64.0.1"),
}


@pytest.mark.parametrize(("address", "flag"), ADDRESSES.values(), ids=ADDRESSES.keys())
def test_api_server_advertises_non_loopback_addresses(address: str, flag: str) -> None:
    command = programs.command(Program.APISERVER, ControlPlaneConfig(version="v1.36.3", address=address), LAYOUT)
    assert flag in command
    assert f"--bind-address={address}" in command


def test_no_two_programs_share_a_port() -> None:
    ports = [LAYOUT.port(program) for program in Program]
    assert len(set(ports)) == len(ports)


def test_api_server_of_an_earlier_release_is_started_without_a_front_proxy() -> None:
    """A record without the field is of one: its directory has no such certificates."""
    settings = msgspec.json.decode('{"version": "v1.36.3"}', type=ControlPlaneConfig)
    assert not any("proxy" in flag for flag in programs.command(Program.APISERVER, settings, LAYOUT))
