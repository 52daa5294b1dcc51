"""`zonewise install` and `uninstall` on a real API server: strictly valid, idempotent, and gone without a trace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from support.lab import shared_cluster
from support.process import wait_for
from zonewise.api.names import DISRUPTION_FIELD_MANAGER, GRANTED
from zonewise.cli.main import cli, main
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues, documents, identity
from zonewise.install.decide.kinds import ORDER
from zonewise.install.decide.rights import Right, rights_to_install
from zonewise.install.remove import SLICE_METADATA
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

CONTROLLERS = (
    "namespace-controller,serviceaccount-controller,garbage-collector-controller,clusterrole-aggregation-controller,"
    "endpointslice-controller,daemonset-controller"
)
SYSTEM = "zonewise-system"


@dataclass(frozen=True)
class Site:
    plane: ControlPlane

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(self.plane.kubeconfig)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def done(self, *arguments: str) -> list[str]:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def kubectl(self, *arguments: str, given: str = "") -> str:
        command = [str(self.plane.binaries / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, input=given, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def left(self) -> list[str]:
        """All objects of our kinds, and of those our programs make, that have our name."""
        kinds = [str(resource) for resource in ORDER] + ["leases.coordination.k8s.io"]
        found = json.loads(self.kubectl("get", ",".join(kinds), "-A", "-o", "json"))["items"]
        return [f"{kind} {name}" for kind, _, name in map(identity, found) if "zonewise" in name]


@pytest.fixture(scope="module")
def site(run_directory: shared_cluster.Run) -> Iterator[Site]:
    programs = (Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER)
    found = run_directory.private(programs=programs, controllers=CONTROLLERS)
    yield Site(found)
    run_directory.remove(found)


FORMS = [
    (InstallComponent.SLICES, InstallMode.OWN),
    *((component, InstallMode.OVERLAY) for component in InstallComponent),
]


@pytest.mark.parametrize(("component", "mode"), FORMS, ids=[f"{component}-{mode}" for component, mode in FORMS])
def test_every_manifest_is_strictly_valid(site: Site, component: InstallComponent, mode: InstallMode) -> None:
    """By the judgement of the API server, in a namespace that is there, so that it looks at every object."""
    asked = ("--only", str(component), "--mode", str(mode), "-n", "default")
    printed = CliRunner().invoke(cli, ["install", "-o", "yaml", *asked]).stdout
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--field-manager=it", "--force-conflicts")
    checked = site.kubectl("apply", *flags, "-f", "-", given=printed)
    assert len(checked.splitlines()) == len(
        documents([component], mode, ManifestValues(image="zonewise:1", namespace="default"))
    )


def test_from_nothing_to_nothing(site: Site) -> None:
    before = site.left()
    assert site.run("install", "--diff").exit_code == 1
    assert site.left() == before, "a difference stores nothing"

    made = site.done("install", "--image", "registry.example.com/zonewise:1")
    assert all(line.endswith(" created") for line in made)
    assert "deployment.apps/zonewise-webhook created" in made
    assert all(
        line.endswith(" unchanged") for line in site.done("install", "--image", "registry.example.com/zonewise:1")
    )
    assert not site.done("install", "--diff", "--image", "registry.example.com/zonewise:1")

    site.plane.request("PATCH", _service("default", "kubernetes"), _annotated({"zonewise.dev/routing": "{}"}))
    site.plane.request("PATCH", _service("default", "kubernetes"), _labelled("zonewise"))
    _make_what_programs_make(site)
    _mark_what_programs_mark(site)
    gone = site.done("uninstall", "--yes")
    assert all(line.endswith(" deleted") for line in gone)
    assert site.left() == before == []
    service = site.plane.request("GET", _service("default", "kubernetes"))["metadata"]
    assert "zonewise" not in json.dumps([service["labels"], service.get("annotations", {})])
    assert '"controller.kubernetes.io/pod-deletion-cost"' not in site.kubectl("get", "pod", "leaving", "-o", "json")
    marked = site.kubectl("get", "pods,services,endpointslices", "-A", "-o", "json")
    assert "zonewise" not in marked.replace("kept.zonewise", ""), "no mark stays on what is not ours"
    assert site.run("uninstall", "--yes").stderr.startswith("nothing of Zonewise is at https://")


def test_nodes_that_are_away_are_not_waited_for(site: Site) -> None:
    site.plane.request("POST", "/api/v1/nodes", {"metadata": {"name": "away"}})
    site.done("install", "--only", "proxy")
    try:
        gone = site.done("uninstall", "--yes")
    finally:
        site.plane.request("DELETE", "/api/v1/nodes/away")
    assert "rules of zonewise proxy on every ready node deleted" in gone
    (left,) = [line for line in gone if not line.endswith(" deleted")]
    assert left.startswith("rules of zonewise proxy on node away left behind: it is not ready; run `zonewise proxy")
    assert site.left() == []


def _service(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/services/{name}"


def _annotated(annotations: dict[str, str]) -> dict[str, object]:
    return {"metadata": {"annotations": annotations}}


def _labelled(proxy: str) -> dict[str, object]:
    return {"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": proxy}}}


def _make_what_programs_make(site: Site) -> None:
    site.plane.request("POST", f"/api/v1/namespaces/{SYSTEM}/secrets", {"metadata": {"name": "zonewise-guard"}})
    lease = {"metadata": {"name": "zonewise-endpointslices"}}
    site.plane.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases", lease)


def _mark_what_programs_mark(site: Site) -> None:
    """A pod that a scale-down was granted, and a slice of mode own."""
    wait_for(lambda: "default" in site.kubectl("get", "serviceaccounts", "-n", "default", "-o", "name"))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "leaving", "annotations": {"kept.zonewise": "mine"}}}
    site.kubectl("create", "-f", "-", given=json.dumps(pod | {"spec": {"containers": [{"name": "c", "image": "i"}]}}))
    granted = {GRANTED: "uid", "controller.kubernetes.io/pod-deletion-cost": "-2147483648"}
    grant = pod | {"metadata": {"name": "leaving", "annotations": granted}}
    flags = ("--server-side", f"--field-manager={DISRUPTION_FIELD_MANAGER}")
    site.kubectl("apply", *flags, "-f", "-", given=json.dumps(grant))
    metadata = {kind: dict.fromkeys(marks, "x") for kind, marks in SLICE_METADATA.items()}
    found = {"metadata": {"name": "own", **metadata}, "addressType": "IPv4", "endpoints": [], "ports": []}
    site.plane.request("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", found)


def test_changes_are_shown_and_made_and_those_of_others_kept(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.done("install", "--only", "slices")
    shown = site.run("install", "--only", "slices", "--replicas", "3", "--diff")
    assert shown.exit_code == 1
    assert "-  replicas: 2\n+  replicas: 3\n" in shown.stdout
    assert "deployment.apps/zonewise-webhook configured" in site.done("install", "--only", "slices", "--replicas", "3")

    site.kubectl("-n", SYSTEM, "scale", "deployment/zonewise-webhook", "--replicas=5")
    with pytest.raises(SystemExit) as left:
        main(["install", "--only", "slices", "--kubeconfig", str(site.plane.kubeconfig)])
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("zonewise: deployment.apps/zonewise-webhook: others have written .spec.replicas: ")
    assert said.count("\n") == 1
    site.done("install", "--only", "slices", "--force-conflicts")
    site.done("uninstall", "--yes")


def test_the_other_mode_leaves_none_of_its_rights(site: Site) -> None:
    site.done("install", "--only", "slices", "--mode", "overlay")
    shown = site.run("install", "--only", "slices", "--mode", "own", "--diff")
    assert shown.exit_code == 1
    made = site.done("install", "--only", "slices", "--mode", "own")
    _shows_all_that_was_deleted(shown.stdout, made)
    assert "ClusterRole zonewise-controller" in site.left()
    assert "ClusterRole zonewise-overlay-controller" not in site.left()
    assert "MutatingWebhookConfiguration zonewise-overlay" not in site.left()
    site.done("uninstall", "--yes")
    assert site.left() == []


def test_another_way_to_serve_names_takes_the_place_of_the_former(site: Site) -> None:
    site.done("install", "--only", "dns-node")
    shown = site.run("install", "--only", "dns", "--diff")
    made = site.done("install", "--only", "dns")
    _shows_all_that_was_deleted(shown.stdout, made)
    left = site.left()
    assert "Deployment zonewise-dns" in left
    assert "DaemonSet zonewise-dns" not in left
    assert f"Namespace {SYSTEM}" in left, "others may live there"
    assert not site.done("install", "--only", "dns", "--diff"), "what is gone is no difference"
    site.done("uninstall", "--yes")
    assert site.left() == []


def _shows_all_that_was_deleted(shown: str, made: list[str]) -> None:
    deleted = [line.removesuffix(" deleted") for line in made if line.endswith(" deleted")]
    assert deleted
    for name in deleted:
        assert f"--- live/{name}\n+++ applied/{name}\n@@ -1," in shown
    assert shown.count(" +0,0 @@") == len(deleted), "nothing else, and wholly"


def test_what_is_shared_stays_for_the_others(site: Site) -> None:
    """Also the namespace and the kind of somebody who had them before us."""
    site.plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}})
    site.done("install", "--only", "slices,disruption", "-n", "mine")
    site.done("uninstall", "--only", "slices", "-n", "mine", "--yes")
    left = site.left()
    assert "Deployment zonewise-guard" in left
    assert "Deployment zonewise-webhook" not in left
    site.done("uninstall", "--keep-budgets", "-n", "mine", "--yes")
    assert site.left() == ["CustomResourceDefinition topologydisruptionbudgets.zonewise.dev"]
    assert site.plane.request("GET", "/api/v1/namespaces/mine")["status"]["phase"] == "Active"
    site.done("uninstall", "--yes")


def test_the_rights_doctor_checks_are_sufficient_and_necessary(site: Site, tmp_path: Path) -> None:
    needed = rights_to_install(SYSTEM)
    config = _as_somebody_with(site, needed, tmp_path)
    done = _install_by(config)
    assert done.returncode == 0, done.stderr
    site.done("uninstall", "--yes")
    for verb in dict.fromkeys(right.verb for right in needed):
        _grant(site, [right for right in needed if right.verb != verb])
        refused = _install_by(config)
        assert refused.returncode == 1, f"without {verb}"
        assert re.search(r"forbidden|does not have .* permission", refused.stderr), refused.stderr
    site.done("uninstall", "--yes")
    site.kubectl("delete", "clusterrole/somebody", "clusterrolebinding/somebody", "serviceaccount/somebody")


def _install_by(config: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("zonewise")), "install", "--kubeconfig", config]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def _as_somebody_with(site: Site, rights: Sequence[Right], folder: Path) -> str:
    """The kubeconfig of a service account that may do this and no more."""
    site.kubectl("create", "serviceaccount", "somebody")
    _grant(site, rights)
    site.kubectl(
        "create", "clusterrolebinding", "somebody", "--clusterrole=somebody", "--serviceaccount=default:somebody"
    )
    cluster = {"server": site.plane.server, "certificate-authority": str(site.plane.ca_path)}
    document = {
        "current-context": "it",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": site.kubectl("create", "token", "somebody").strip()}}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
    }
    config = folder / "somebody.config"
    config.write_text(json.dumps(document))
    return str(config)


def _grant(site: Site, rights: Sequence[Right]) -> None:
    rules = [{"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]} for right in rights]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "somebody"}}
    site.kubectl("apply", "-f", "-", given=json.dumps(role | {"rules": rules}))


def test_a_plugin_does_not_prompt_without_a_terminal(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.done("install", "--only", "disruption")
    budget = {"metadata": {"name": "it"}, "spec": {"selector": {}, "maxUnavailable": 1}}
    body = {"apiVersion": "zonewise.dev/v1alpha1", "kind": "TopologyDisruptionBudget", **budget}
    site.kubectl("apply", "-f", "-", given=json.dumps(body))
    with pytest.raises(SystemExit) as left:
        main(["uninstall", "--only", "disruption", "--kubeconfig", str(site.plane.kubeconfig)])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert "and with it 1 budgets" in said
    assert "--yes" in said
    site.done("uninstall", "--yes")
    assert site.left() == []
