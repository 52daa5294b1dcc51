"""Control plane of tests and labs: readiness, faults, compaction, cleanup."""

import http.client
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.lab import shared_cluster
from support.lab.machine import until
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program


def test_shared_cluster_takes_pods_in_a_fresh_namespace(cluster: ControlPlane, namespace: str) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    assert cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods/p")["metadata"]["name"] == "p"


async def test_client_reaches_the_shared_cluster(client: Client) -> None:
    assert (await client.version()).startswith("v1.")


def test_state_survives_killed_apiserver_and_etcd_until_stop(private_cluster: Callable[..., ControlPlane]) -> None:
    plane = private_cluster()
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kept"}})
    plane.kill(Program.ETCD)
    plane.kill(Program.APISERVER)
    with pytest.raises(OSError, match="refused"):
        plane.request("GET", "/api/v1/namespaces/kept")
    plane.spawn(Program.ETCD)
    plane.spawn(Program.APISERVER)
    plane.wait_ready()
    assert plane.request("GET", "/api/v1/namespaces/kept")["metadata"]["name"] == "kept"
    plane.stop()
    assert not plane.layout.data.exists()
    assert not plane.process(Program.ETCD).running


def test_compacted_history_returns_410(private_cluster: Callable[..., ControlPlane]) -> None:
    plane = private_cluster()
    old = plane.request("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"]
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "newer"}})
    assert plane.forget_history() > int(old)
    with pytest.raises(http.client.HTTPException, match="410"):
        plane.request("GET", f"/api/v1/namespaces?limit=1&resourceVersion={old}&resourceVersionMatch=Exact")


def test_paused_api_server_serves_after_resume(private_cluster: Callable[..., ControlPlane]) -> None:
    plane = private_cluster()
    plane.pause(Program.APISERVER)
    until(lambda: plane.process(Program.APISERVER).paused)
    plane.resume(Program.APISERVER)
    plane.wait_ready()


def test_added_user_has_its_name_and_group(cluster: ControlPlane) -> None:
    path = cluster.add_user("guest", "guest", ["visitors"])
    command = [
        cluster.binaries / "kubectl",
        "--kubeconfig",
        path,
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo}",
    ]
    user_info = subprocess.check_output(command, text=True)
    assert '"username":"guest"' in user_info
    assert '"visitors"' in user_info


KILLED_RUN = """
import os, signal
from support.lab import shared_cluster
with shared_cluster.Run.join() as run:
    plane = run.private()
    print(plane.directory, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_test_run_is_cleaned_up_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_STATE", str(tmp_path))
    environ = {
        **os.environ,
        "PYTHONPATH": str(Path(shared_cluster.__file__).parents[2]),
        "PYTEST_XDIST_TESTRUNUID": "killed",
    }
    output = subprocess.run(
        [sys.executable, "-c", KILLED_RUN], env=environ, stdout=subprocess.PIPE, text=True, check=False
    )
    abandoned = ControlPlane.attach(Path(output.stdout.strip()))
    etcd = abandoned.process(Program.ETCD)
    assert etcd.running
    with shared_cluster.Run.join():
        assert not etcd.running
        assert not abandoned.directory.exists()
        assert not abandoned.layout.data.exists()
