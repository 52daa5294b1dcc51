"""deploy/dashboard.yaml: the dashboard needs exactly the rights that it grants, and authorizes viewers."""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from support.install.deployed import SYSTEM, Deployed, Scope, audit_flags, documents, scopes, token_of
from support.process import Program as Process
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane

ACCOUNT = "zonewise-dashboard"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


def _arguments() -> list[str]:
    (workload,) = [body for body in documents("dashboard.yaml") if body["kind"] == "Deployment"]
    arguments: list[str] = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    return [argument for argument in arguments if not argument.startswith("--port")]


async def test_the_dashboard_uses_all_of_its_rights_and_no_other(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    plane = private_cluster(flags=audit_flags(tmp_path))
    site = Deployed(plane, tmp_path)
    site.apply("tdb.yaml")
    site.apply("dashboard.yaml")
    plane.request("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": "viewer"}})
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        config = await site.kubeconfig(client, ACCOUNT)
        token = await token_of(client, "viewer")
    zonewise = str(Path(sys.executable).with_name("zonewise"))
    program = Process(
        zonewise, *_arguments(), "--port", 0, "--health-port", 0, "--metrics-port", 0, "--kubeconfig", config
    )
    try:
        program.wait_ready()
        port = int(program.line("dashboard served")["url"].rstrip("/").rpartition(":")[2])
        assert _status(port, token) == 403, "an authenticated user without the right is refused"
        assert program.scrape(token)[0] == 403
        subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": SYSTEM}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "zonewise-dashboard-viewer"}
        plane.request(
            "POST", f"{ROLES}/clusterrolebindings", {"metadata": {"name": "l"}, "roleRef": role, "subjects": [subject]}
        )
        await eventually(lambda: _status(port, token) == 200, "an authorized user gets the page")
        await eventually(lambda: _used(site) == scopes("dashboard.yaml", ACCOUNT), "every right is used")
        assert not site.refused(ACCOUNT)
    finally:
        program.remove()


def _used(site: Deployed) -> set[Scope]:
    return site.used("dashboard.yaml", ACCOUNT)


def _status(port: int, token: str) -> int:
    """Of the event stream, over TLS with the self-signed certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(f"https://127.0.0.1:{port}/events", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)
