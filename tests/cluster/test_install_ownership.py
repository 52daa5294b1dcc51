"""What `install` and `uninstall` leave alone on a real API server: foreign objects of the same name, and users' data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.install.site import CONTROLLERS, SYSTEM, Site
from support.lab import shared_cluster
from zonewise.cli.main import cli
from zonewise.disruption.webhook import registration
from zonewise.install.components import DEFAULT, InstallMode, ManifestValues, documents
from zonewise.lab.controlplane.programs import Program

pytestmark = pytest.mark.xdist_group("install-ownership")  # one control plane for all of them

CRD = "customresourcedefinition.apiextensions.k8s.io/topologydisruptionbudgets.zonewise.dev"
MANIFESTS = Path(__file__).parents[2] / "deploy"
ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": []}
RULE = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
BUDGET = {
    "apiVersion": "zonewise.dev/v1alpha1",
    "kind": "TopologyDisruptionBudget",
    "metadata": {"name": "it", "namespace": "default"},
    "spec": {"selector": {}, "maxUnavailable": 1},
}


@pytest.fixture(scope="module")
def site(run_directory: shared_cluster.Run) -> Iterator[Site]:
    programs = (Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER)
    plane = run_directory.private(programs=programs, controllers=CONTROLLERS)
    yield Site(plane)
    run_directory.remove(plane)


def create(site: Site, *objects: dict[str, Any]) -> None:
    for each in objects:
        site.kubectl("create", "-f", "-", stdin=json.dumps(each))


def role(name: str) -> dict[str, Any]:
    return ROLE | {"metadata": {"name": name}, "rules": [RULE]}


def secret(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": SYSTEM}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"key": "mine"}}


def test_uninstall_leaves_foreign_objects_of_the_same_name(site: Site) -> None:
    """A role and a Secret of somebody, the configuration of a guard that registered itself, and a CRD with a budget."""
    site.kubectl("create", "namespace", SYSTEM)
    create(site, role("zonewise-proxy"), secret("zonewise-guard"))
    configuration = registration.documents(
        {name: {"url": f"https://localhost/{name}"} for name in (registration.EVICTIONS, registration.DELETES)}, SYSTEM
    )[-1]
    manager = "--field-manager=zonewise-disruption"
    site.kubectl("apply", "--server-side", manager, "-f", "-", stdin=json.dumps(configuration))
    site.kubectl("apply", "-f", str(MANIFESTS / "tdb.yaml"))
    site.kubectl("wait", "--for=condition=Established", CRD.replace(".apiextensions.k8s.io", ""))
    create(site, BUDGET)
    before = site.leftovers()

    changes = site.run_ok("uninstall", "--yes", "--purge", "--keep-budgets")
    assert site.leftovers() == before
    assert site.kubectl("get", "topologydisruptionbudgets", "-A", "-o", "name").split() == [
        "topologydisruptionbudget.zonewise.dev/it"
    ]
    left = dict(line.split(" left behind: ", 1) for line in changes)
    assert left == {
        "clusterrole.rbac.authorization.k8s.io/zonewise-proxy": "`zonewise install` did not make it, but kubectl-create",
        f"secret {SYSTEM}/zonewise-guard": "no program of Zonewise made it",
        "validatingwebhookconfiguration.admissionregistration.k8s.io/zonewise-disruption": (
            "`zonewise install` did not make it, but zonewise-disruption"
        ),
        CRD: "it holds all budgets (1); --purge deletes it with them",
    }
    site.kubectl("delete", "clusterrole/zonewise-proxy", "validatingwebhookconfiguration/zonewise-disruption")
    site.kubectl("delete", f"namespace/{SYSTEM}", CRD.replace(".apiextensions.k8s.io", ""))


def test_install_changes_nothing_if_a_name_is_taken(site: Site) -> None:
    site.kubectl("create", "namespace", SYSTEM)
    site.kubectl("-n", SYSTEM, "create", "serviceaccount", "zonewise-guard")
    create(site, role("zonewise-proxy"))
    before = site.leftovers()
    for arguments in (["install"], ["install", "--diff"], ["install", "--adopt", "--force-conflicts"]):
        message = site.refused(*arguments)
        assert message.startswith("nothing was changed, because these names are taken: ")
        assert "serviceaccount/zonewise-guard: `zonewise install` did not make it;" in message
        assert "zonewise-proxy: `zonewise install` did not make it, but kubectl-create." in message
        assert site.leftovers() == before
    site.kubectl("delete", f"namespace/{SYSTEM}", "clusterrole/zonewise-proxy")


def test_uninstall_leaves_a_foreign_account_that_a_binding_of_ours_names(site: Site) -> None:
    """The binding of the readers of metrics names the dashboard's account, whether there is a dashboard or not."""
    site.run_ok("install", "--only", "disruption")
    site.kubectl("-n", SYSTEM, "create", "serviceaccount", "zonewise-dashboard")
    bindings = json.loads(site.kubectl("get", "clusterrolebinding", "-o", "json"))["items"]
    assert "zonewise-dashboard" in [subject["name"] for item in bindings for subject in item.get("subjects", ())]
    planned = json.loads(site.run("uninstall", "--dry-run", "-o", "json").stdout)["outcomes"]
    (found,) = [outcome for outcome in planned if outcome["name"] == "serviceaccount/zonewise-dashboard"]
    assert (found["change"], found["why"]) == ("left behind", "`zonewise install` did not make it")
    site.kubectl("-n", SYSTEM, "delete", "serviceaccount", "zonewise-dashboard")
    site.run_ok("uninstall", "--yes", "--purge")


def test_budgets_and_users_objects_stay_without_purge(site: Site) -> None:
    """The CSI driver's configuration is the user's: `zonewise install` has no part in it."""
    site.run_ok("install", "--only", "slices,disruption")
    create(site, secret("zonewise-csi-ceph"), BUDGET)
    site.kubectl("-n", SYSTEM, "create", "configmap", "zonewise-csi-config", "--from-literal=config.json={}")
    site.kubectl("-n", SYSTEM, "create", "quota", "mine", "--hard=pods=9")
    before = site.leftovers()

    planned = json.loads(site.run("uninstall", "--dry-run", "-o", "json").stdout)
    assert planned["dryRun"] is True
    assert site.leftovers() == before
    assert "deployment.apps/zonewise-guard deleted (dry run)" in site.run_ok("uninstall", "--dry-run")

    done = json.loads(site.run("uninstall", "--yes", "-o", "json").stdout)
    assert done["outcomes"] == planned["outcomes"], "the dry run said what happens"
    left = {each["name"]: each["why"] for each in done["outcomes"] if each["change"] == "left behind"}
    theirs = (
        "it holds configmap/zonewise-csi-config, resourcequota/mine, secret/zonewise-csi-ceph, which no install made;"
    )
    assert left[f"namespace/{SYSTEM}"].startswith(theirs)
    assert left.keys() == {f"namespace/{SYSTEM}", CRD}
    assert set(site.leftovers()) == {
        "ConfigMap zonewise-csi-config",
        f"CustomResourceDefinition {CRD.partition('/')[2]}",
        f"Namespace {SYSTEM}",
        "Secret zonewise-csi-ceph",
    }
    site.kubectl("get", "topologydisruptionbudgets", "it")
    changes = site.run_ok("uninstall", "--yes", "--purge")
    assert f"secret/zonewise-csi-ceph in {SYSTEM} deleted" in changes
    assert site.leftovers() == []


def test_foreign_secret_of_a_programs_name_keeps_the_namespace(site: Site) -> None:
    site.run_ok("install", "--only", "disruption")
    create(site, secret("zonewise-guard"))
    site.run_ok("uninstall", "--yes")
    assert {f"Namespace {SYSTEM}", "Secret zonewise-guard"} <= set(site.leftovers())
    site.clean()


def test_uninstall_shows_its_plan_before_it_asks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run_ok("install", "--only", "slices")
    before = site.leftovers()
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _self: True, raising=False)
    result = CliRunner().invoke(cli, ["uninstall", "--kubeconfig", str(site.plane.kubeconfig)], input="n\n")
    assert str(result.exception) == "nothing was removed"
    assert "deployment.apps/zonewise-webhook deleted (planned)\n" in result.stderr
    assert f"from {site.plane.server}? [y/N]" in result.stderr
    assert site.leftovers() == before
    site.clean()


def test_namespace_stays_while_an_api_is_away(site: Site) -> None:
    """Nobody can tell what of that API the namespace holds."""
    spec = {"group": "away.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 1}
    server = {"service": {"name": "away", "namespace": "default"}, "insecureSkipTLSVerify": True}
    kind = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": spec | server}
    site.run_ok("install", "--only", "slices")
    create(site, kind | {"metadata": {"name": "v1.away.example.com"}})
    (left,) = [line for line in site.run_ok("uninstall", "--yes") if " left behind: " in line]
    assert left.startswith(f"namespace/{SYSTEM} left behind: what it holds can't be read (")
    assert "away.example.com/v1" in left
    site.kubectl("delete", "apiservice", "v1.away.example.com")
    site.clean()


def test_objects_of_release_0_1_are_upgraded_and_removed(site: Site) -> None:
    """That release labelled only the namespace; its ServiceAccounts have no field that says who made them."""
    for upgraded in (True, False):
        for document in documents(DEFAULT, InstallMode.OVERLAY, ManifestValues(image="zonewise:0.1.0")):
            part_of = {"app.kubernetes.io/part-of": "zonewise"}
            document["metadata"]["labels"] = part_of if document["kind"] == "Namespace" else {}
            flags = ("--server-side", "--field-manager=zonewise-install")
            site.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(document))
        if upgraded:
            changes = site.run_ok("install")
            assert {line.rpartition(" ")[2] for line in changes} == {"configured"}
        site.clean()


def test_adopt_takes_over_what_kubectl_made_of_the_manifests(site: Site) -> None:
    printed = site.run("install", "-o", "yaml", "--only", "slices").stdout
    site.kubectl("apply", "-f", "-", stdin=printed)
    create(site, role("zonewise-proxy"))
    before = site.leftovers()
    changes = site.run_ok("uninstall", "--yes", "--purge")
    assert all(" left behind: " in line for line in changes)
    assert site.leftovers() == before

    assert "--adopt takes over" in site.refused("install", "--only", "slices")
    assert site.run_ok("install", "--only", "slices", "--adopt")
    assert site.run_ok("install", "--only", "slices"), "it is ours now"
    site.run_ok("uninstall", "--yes", "--purge")
    assert site.leftovers() == ["ClusterRole zonewise-proxy"], "it has not our label"

    site.kubectl("apply", "-f", "-", stdin=printed)
    site.run_ok("uninstall", "--yes", "--purge", "--adopt")
    assert site.leftovers() == ["ClusterRole zonewise-proxy"]
    site.kubectl("delete", "clusterrole/zonewise-proxy")


def test_a_second_install_elsewhere_is_refused(site: Site) -> None:
    """And an uninstall there takes nothing from this one: no object, no budget, no Service from its proxy."""
    site.run_ok("install", "--only", "disruption,proxy")
    create(site, BUDGET)
    site.kubectl("label", "service", "kubernetes", "service.kubernetes.io/service-proxy-name=zonewise")
    message = site.refused("install", "--only", "proxy", "-n", "other")
    assert f"zonewise-proxy: it belongs to the Zonewise in namespace {SYSTEM}" in message
    before = site.leftovers()
    changes = site.run_ok("uninstall", "--yes", "--purge", "-n", "other")
    assert all(" left behind: " in line for line in changes)
    assert site.leftovers() == before
    site.kubectl("get", "topologydisruptionbudgets", "it")
    site.clean()


def test_mode_change_leaves_a_foreign_role_of_the_other_mode(site: Site) -> None:
    create(site, role("zonewise-controller"))
    changes = site.run_ok("install", "--only", "slices")
    (left,) = [line for line in changes if not line.endswith(" created")]
    assert left.startswith("clusterrole.rbac.authorization.k8s.io/zonewise-controller left behind: ")
    assert "ClusterRole zonewise-controller" in site.leftovers()
    site.kubectl("delete", "clusterrole/zonewise-controller")
    site.clean()
