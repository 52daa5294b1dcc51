"""deploy/dashboard.yaml: the page does its whole work with exactly the rights it gives, and lets in who may look."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from support.install.deployed import SYSTEM, Deployed, Scope, audit_flags, documents, scopes
from support.process import Program as Process
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane

ACCOUNT = "zonewise-dashboard"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


def _arguments() -> list[str]:
    (workload,) = [document for document in documents("dashboard.yaml") if document["kind"] == "Deployment"]
    found: list[str] = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    return [each for each in found if not each.startswith("--port")]


async def test_it_uses_all_of_its_rights_and_needs_no_other(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    plane = private_cluster(flags=audit_flags(tmp_path))
    site = Deployed(plane, tmp_path)
    site.apply("tdb.yaml")
    site.apply("dashboard.yaml")
    plane.request("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": "looker"}})
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        config = await site.kubeconfig(client, ACCOUNT)
        token = json.loads(await _token(client))["status"]["token"]
    zonewise = str(Path(sys.executable).with_name("zonewise"))
    program = Process(zonewise, *_arguments(), "--port", 0, "--health-port", 0, "--kubeconfig", config)
    try:
        program.wait_ready()
        port = int(program.next_word().split("  ")[0].rstrip("/").rpartition(":")[2])
        assert _status(port, token) in {401, 403}, "not everybody whom the API server knows may look"
        subject = {"kind": "ServiceAccount", "name": "looker", "namespace": SYSTEM}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "zonewise-dashboard-viewer"}
        plane.request(
            "POST", f"{ROLES}/clusterrolebindings", {"metadata": {"name": "l"}, "roleRef": role, "subjects": [subject]}
        )
        await eventually(lambda: _status(port, token) == 200, "who may look does")
        await eventually(lambda: _used(site) == scopes("dashboard.yaml", ACCOUNT), "every right is used")
        assert not site.refused(ACCOUNT)
    finally:
        program.remove()


def _used(site: Deployed) -> set[Scope]:
    return site.used("dashboard.yaml", ACCOUNT)


async def _token(client: Client) -> bytes:
    body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}'
    return await client.request("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/looker/token", body=body)


def _status(port: int, token: str) -> int:
    """Of what the page is fed with, over TLS with the certificate that it made itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(f"https://127.0.0.1:{port}/events", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)
