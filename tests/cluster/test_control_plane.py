"""The control plane that tests and labs stand on: readiness, faults, compaction, what is left after it."""

import http.client
from collections.abc import Callable

import pytest

from zonewise.kube.client import Client
from zonewise.lab.controlplane import ControlPlane
from zonewise.lab.programs import Program


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


def test_forgotten_history_answers_410(private_cluster: Callable[..., ControlPlane]) -> None:
    plane = private_cluster()
    old = plane.request("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"]
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "newer"}})
    assert plane.forget_history() > int(old)
    with pytest.raises(http.client.HTTPException, match="410"):
        plane.request("GET", f"/api/v1/namespaces?limit=1&resourceVersion={old}&resourceVersionMatch=Exact")
