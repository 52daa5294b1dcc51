"""`zonewise install` and `uninstall` on a real API server: strict validation, idempotence, and complete removal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.install.site import CONTROLLERS, SYSTEM, Site, account_with, grant, install_with
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.api.names import DISRUPTION_FIELD_MANAGER, GRANTED
from zonewise.cli.main import cli, main
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues, documents
from zonewise.install.remove import SLICE_METADATA
from zonewise.install.rights import rights_to_install
from zonewise.lab.controlplane.programs import Program

pytestmark = pytest.mark.xdist_group("install")  # one control plane for all of them


@pytest.fixture(scope="module")
def site(run_directory: shared_cluster.Run) -> Iterator[Site]:
    programs = (Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER)
    plane = run_directory.private(programs=programs, controllers=CONTROLLERS)
    yield Site(plane)
    run_directory.remove(plane)


FORMS = [
    (InstallComponent.SLICES, InstallMode.OWN),
    *((component, InstallMode.OVERLAY) for component in InstallComponent),
]


@pytest.mark.parametrize(("component", "mode"), FORMS, ids=[f"{component}-{mode}" for component, mode in FORMS])
def test_every_manifest_passes_strict_validation(site: Site, component: InstallComponent, mode: InstallMode) -> None:
    """Validated by the API server in an existing namespace, so that it checks every object."""
    options = ("--only", str(component), "--mode", str(mode), "-n", "default")
    printed = CliRunner().invoke(cli, ["install", "-o", "yaml", *options]).stdout
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--field-manager=it", "--force-conflicts")
    checked = site.kubectl("apply", *flags, "-f", "-", stdin=printed)
    assert len(checked.splitlines()) == len(
        documents([component], mode, ManifestValues(image="zonewise:1", namespace="default"))
    )


def test_install_and_uninstall_leave_no_trace(site: Site) -> None:
    before = site.leftovers()
    assert site.run("install", "--diff").exit_code == 1
    assert site.leftovers() == before, "--diff stores nothing"

    changes = site.run_ok("install", "--image", "registry.example.com/zonewise:1")
    assert all(line.endswith(" created") for line in changes)
    assert "deployment.apps/zonewise-webhook created" in changes
    assert all(
        line.endswith(" unchanged") for line in site.run_ok("install", "--image", "registry.example.com/zonewise:1")
    )
    assert not site.run_ok("install", "--diff", "--image", "registry.example.com/zonewise:1")

    site.plane.request("PATCH", _service("default", "kubernetes"), _annotated({"zonewise.dev/routing": "{}"}))
    site.plane.request("PATCH", _service("default", "kubernetes"), _labelled("zonewise"))
    _create_runtime_objects(site)
    _mark_foreign_objects(site)
    changes = site.run_ok("uninstall", "--yes", "--purge")
    assert all(line.endswith(" deleted") for line in changes)
    assert site.leftovers() == before == []
    service = site.plane.request("GET", _service("default", "kubernetes"))["metadata"]
    assert "zonewise" not in json.dumps([service["labels"], service.get("annotations", {})])
    assert '"controller.kubernetes.io/pod-deletion-cost"' not in site.kubectl("get", "pod", "leaving", "-o", "json")
    marked = site.kubectl("get", "pods,services,endpointslices", "-A", "-o", "json")
    assert "zonewise" not in marked.replace("kept.zonewise", ""), "no mark stays on foreign objects"
    assert site.run("uninstall", "--yes").stderr.startswith("nothing of Zonewise is at https://")


def test_uninstall_does_not_wait_for_unready_nodes(site: Site) -> None:
    site.plane.request("POST", "/api/v1/nodes", {"metadata": {"name": "away"}})
    site.run_ok("install", "--only", "proxy")
    try:
        changes = site.run_ok("uninstall", "--yes")
    finally:
        site.plane.request("DELETE", "/api/v1/nodes/away")
    assert "rules of zonewise proxy on every ready node deleted" in changes
    (leftover,) = [line for line in changes if not line.endswith(" deleted")]
    assert leftover.startswith("rules of zonewise proxy on node away left behind: it is not ready; run `zonewise proxy")
    assert site.leftovers() == []


def _service(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/services/{name}"


def _annotated(annotations: dict[str, str]) -> dict[str, object]:
    return {"metadata": {"annotations": annotations}}


def _labelled(proxy: str) -> dict[str, object]:
    return {"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": proxy}}}


def _create_runtime_objects(site: Site) -> None:
    """As the programs create them, under their field manager."""
    manager = "?fieldManager=zonewise"
    secret = {"metadata": {"name": "zonewise-guard"}, "stringData": {"ca.crt": "x"}}
    site.plane.request("POST", f"/api/v1/namespaces/{SYSTEM}/secrets{manager}", secret)
    lease = {"metadata": {"name": "zonewise-endpointslices"}, "spec": {"holderIdentity": "x"}}
    site.plane.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases{manager}", lease)


def _mark_foreign_objects(site: Site) -> None:
    """A pod with a scale-down grant, and an EndpointSlice of mode own."""
    wait_for(lambda: "default" in site.kubectl("get", "serviceaccounts", "-n", "default", "-o", "name"))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "leaving", "annotations": {"kept.zonewise": "mine"}}}
    site.kubectl("create", "-f", "-", stdin=json.dumps(pod | {"spec": {"containers": [{"name": "c", "image": "i"}]}}))
    granted = {GRANTED: "uid", "controller.kubernetes.io/pod-deletion-cost": "-2147483648"}
    grant = pod | {"metadata": {"name": "leaving", "annotations": granted}}
    leader = (f"--as=system:serviceaccount:{SYSTEM}:zonewise-disruption", "--as-group=system:masters")
    flags = ("--server-side", f"--field-manager={DISRUPTION_FIELD_MANAGER}", *leader)
    site.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(grant))
    metadata = {kind: dict.fromkeys(marks, "x") for kind, marks in SLICE_METADATA.items()}
    endpoint_slice = {"metadata": {"name": "own", **metadata}, "addressType": "IPv4", "endpoints": [], "ports": []}
    site.plane.request("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", endpoint_slice)


def test_install_applies_its_diff_and_rejects_conflicts(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.run_ok("install", "--only", "slices")
    diff = site.run("install", "--only", "slices", "--replicas", "3", "--diff")
    assert diff.exit_code == 1
    assert "-  replicas: 2\n+  replicas: 3\n" in diff.stdout
    assert "deployment.apps/zonewise-webhook configured" in site.run_ok(
        "install", "--only", "slices", "--replicas", "3"
    )

    site.kubectl("-n", SYSTEM, "scale", "deployment/zonewise-webhook", "--replicas=5")
    with pytest.raises(SystemExit) as exited:
        main(["install", "--only", "slices", "--kubeconfig", str(site.plane.kubeconfig)])
    assert exited.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("zonewise: deployment.apps/zonewise-webhook: others have written .spec.replicas: ")
    assert message.count("\n") == 1
    site.run_ok("install", "--only", "slices", "--force-conflicts")
    site.clean()


def test_partial_uninstall_keeps_shared_objects(site: Site) -> None:
    """Also a namespace that existed before; and the CRD, without --purge."""
    site.plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}})
    site.run_ok("install", "--only", "slices,disruption", "-n", "mine")
    site.run_ok("uninstall", "--only", "slices", "-n", "mine", "--yes")
    leftovers = site.leftovers()
    assert "Deployment zonewise-guard" in leftovers
    assert "Deployment zonewise-webhook" not in leftovers
    site.run_ok("uninstall", "-n", "mine", "--yes")
    assert site.leftovers() == ["CustomResourceDefinition topologydisruptionbudgets.zonewise.dev"]
    assert site.plane.request("GET", "/api/v1/namespaces/mine")["status"]["phase"] == "Active"
    site.run_ok("uninstall", "--purge", "-n", "mine", "--yes")
    assert site.leftovers() == []


def test_rights_checked_by_doctor_are_necessary_and_sufficient(site: Site, tmp_path: Path) -> None:
    needed = rights_to_install(SYSTEM)
    config = account_with(site, needed, tmp_path)
    result = install_with(config)
    assert result.returncode == 0, result.stderr
    site.clean()
    for verb in dict.fromkeys(right.verb for right in needed if right.verb != "delete"):
        grant(site, [right for right in needed if right.verb != verb])
        refused = install_with(config)
        assert refused.returncode == 1, f"without {verb}"
        assert re.search(r"forbidden|does not have .* permission", refused.stderr), refused.stderr
    site.clean()
    site.kubectl("delete", "clusterrole/installer", "clusterrolebinding/installer", "serviceaccount/installer")


def test_uninstall_does_not_prompt_without_a_terminal(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.run_ok("install", "--only", "disruption")
    budget = {"metadata": {"name": "it"}, "spec": {"selector": {}, "maxUnavailable": 1}}
    body = {"apiVersion": "zonewise.dev/v1alpha1", "kind": "TopologyDisruptionBudget", **budget}
    site.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    with pytest.raises(SystemExit) as exited:
        main(["uninstall", "--only", "disruption", "--purge", "--kubeconfig", str(site.plane.kubeconfig)])
    message = capsys.readouterr().err
    assert exited.value.code == 2
    assert "and all budgets with it (TopologyDisruptionBudget: 1)" in message
    assert "--yes" in message
    site.clean()
