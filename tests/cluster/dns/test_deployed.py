"""Manifests of deploy/: their RBAC rules are exactly what the server uses; `explain dns` agrees with the server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from support.dns.cluster import endpoint
from support.dns.server import (
    IN_ZONE,
    NOWHERE,
    ZONEWISE,
    Json,
    Server,
    create_nodes,
    create_service,
    slice_body,
    slices_path,
)
from support.install.deployed import SYSTEM, Deployed, audit_flags, documents, scopes, token_in
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.cli.main import main
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("dns-deployed")  # one control plane for all of them

ACCOUNT = "zonewise-dns"
NAMESPACES = {"dns.yaml": "kube-system", "dns-behind.yaml": SYSTEM, "dns-node.yaml": SYSTEM}
HARD = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone"]'}
NAME = "db.default.svc.cluster.local."


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("audited")
    control_plane = run_directory.private(flags=audit_flags(folder))
    create_nodes(control_plane)
    near = [endpoint("10.0.11.1", "zone-a-1"), endpoint("10.0.21.1", "zone-b-1")]
    create_service(control_plane, "default", "db", HARD, clusterIP="None", ports=[{"name": "http", "port": 8080}])
    control_plane.request("POST", slices_path("default"), slice_body("db", near))
    control_plane.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    _create_pod(control_plane, "web", "zone-b-1", IN_ZONE["zone-b"])
    _create_pod(control_plane, "stray", "zone-a-1", NOWHERE)
    yield Deployed(control_plane, folder)
    run_directory.remove(control_plane)


def _create_pod(plane: ControlPlane, name: str, node: str, address: str) -> None:
    path = "/api/v1/namespaces/default/pods"
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
    plane.request("POST", path, {"metadata": {"name": name}, "spec": spec})
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    plane.request("PUT", f"{path}/{name}/status", {"metadata": {"name": name}, "status": status})


@pytest.fixture
async def client(plane: Deployed) -> AsyncIterator[Client]:
    async with Client(kubeconfig.load(plane.plane.kubeconfig)) as connected:
        yield connected


@pytest.mark.parametrize("manifest", NAMESPACES)
async def test_manifest_grants_exactly_the_rights_in_use(plane: Deployed, client: Client, manifest: str) -> None:
    namespace = NAMESPACES[manifest]
    plane.apply(manifest)
    config = await plane.kubeconfig(client, ACCOUNT, namespace)
    (workload,) = [document for document in documents(manifest) if document["kind"] in {"Deployment", "DaemonSet"}]
    command, *arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    assert command == "dns"
    server = Server(
        plane.plane, "--kubeconfig", str(config), *arguments, "--port", "0", "--metrics-port", "0", "--processes", "1"
    )
    try:
        assert server.program.scrape(token_in(config))[0] == 403
        assert server.answer_texts(NAME, client=IN_ZONE["zone-b"]) == ["A 10.0.21.1"]
        assert not plane.refused(ACCOUNT, namespace)
        assert plane.used(manifest, ACCOUNT, namespace) == scopes(manifest, ACCOUNT)
    finally:
        server.remove()


def test_pods_are_watched_when_clients_are_located_by_pod(plane: Deployed) -> None:
    server = Server(plane.plane, "--no-forward", "--locate", "pods", "--pods", "verified", "--processes", "1")
    path, address = "/api/v1/namespaces/default/pods", "127.98.0.9"
    record = "127-98-0-9.default.pod.cluster.local."
    try:
        assert server.answer_texts(NAME, client=NOWHERE) == ["A 10.0.11.1"], "a pod in no range, on zone-a-1"
        assert server.rcode(record) == "NXDOMAIN"
        _create_pod(plane.plane, "late", "zone-b-1", address)
        server.until(NAME, ["A 10.0.21.1"], client=address)
        server.until(record, [f"A {address}"])
        plane.plane.request("DELETE", f"{path}/late?gracePeriodSeconds=0")
        server.until(NAME, ["A 10.0.11.1", "A 10.0.21.1"], client=address)
        wait_for(lambda: server.rcode(record) == "NXDOMAIN")
    finally:
        server.remove()


Explain = Callable[..., tuple[int, Json]]


@pytest.fixture
def explain(plane: Deployed) -> Explain:
    def run(*arguments: str) -> tuple[int, Json]:
        done = _explain(plane, *arguments, "-o", "json")
        return done.returncode, json.loads(done.stdout)

    return run


def _explain(plane: Deployed, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ZONEWISE), "explain", "dns", *arguments, "--kubeconfig", str(plane.plane.kubeconfig)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_explain_agrees_with_the_server(plane: Deployed, explain: Explain) -> None:
    server = Server(plane.plane, "--no-forward")
    try:
        for client in (*IN_ZONE.values(), NOWHERE):
            code, report = explain("db", "-n", "default", "--from-ip", client)
            answered = sorted(f"{record['type']} {record['data']}" for record in report["answer"]["records"])
            assert answered == server.answer_texts(NAME, client=client), client
            assert code == (0 if answered else 1)
            assert report["name"] == NAME
    finally:
        server.remove()


def test_explain_locates_pods_and_nodes(plane: Deployed, explain: Explain) -> None:
    code, report = explain("db", "--from-pod", "default/web")
    assert code == 0
    assert report["client"] == {
        "who": "pod default/web", "address": IN_ZONE["zone-b"], "node": "zone-b-1", "zone": "zone-b",
        "foundBy": "PodRange", "sentence": f"{IN_ZONE['zone-b']} is in the node's pod range 127.21.0.0/24",
    }  # fmt: skip
    _, stray = explain("db", "--from-pod", "stray", "-n", "default")
    assert stray["client"]["foundBy"] == "Nothing"
    assert "the server finds it with --locate pods" in stray["client"]["sentence"]
    _, report = explain("db", "--from-pod", "stray", "-n", "default", "--locate", "pods")
    assert (report["client"]["node"], report["client"]["foundBy"]) == ("zone-a-1", "PodAddress")
    assert explain("db.default", "--from-node", "zone-c-2")[0] == 1
    pointer = explain("1.21.0.10.in-addr.arpa")[1]
    assert [record["data"] for record in pointer["answer"]["records"]] == ["10-0-21-1.db.default.svc.cluster.local."]


MISTAKES = [
    (("db", "--from-pod", "nobody"), 1, "no pod default/nobody: name its namespace with -n"),
    (("db", "--from-node", "nowhere"), 1, "no node nowhere"),
    (("db", "--from-ip", "home"), 2, "--from-ip 'home' is no address"),
    (("db", "--from-ip", "10.0.0.1", "--from-node", "x"), 2, "there is one client"),
    (("a..b",), 2, "is no DNS name"),
    (("db", "--domain", "a..b"), 2, "write one such as cluster.local"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES, ids=[case[2] for case in MISTAKES])
def test_explain_errors_are_one_line(
    plane: Deployed, arguments: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["explain", "dns", *arguments, "--kubeconfig", str(plane.plane.kubeconfig)])
    printed = capsys.readouterr()
    assert (exited.value.code, printed.out) == (code, "")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_explain_text_starts_with_the_answer(plane: Deployed) -> None:
    lines = _explain(plane, "db", "--from-pod", "default/web").stdout.splitlines()
    assert lines[0] == f"{NAME} A for pod default/web: 1 of 2 endpoints, for topology.kubernetes.io/zone=zone-b"
    assert "  A 10.0.21.1" in lines
    assert any(
        line.startswith("  - 10.0.11.1") and line.endswith("zone-a  not for the client's topology.kubernetes.io/zone")
        for line in lines
    )
