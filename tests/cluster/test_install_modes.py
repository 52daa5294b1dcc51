"""Changes of the mode on a cluster whose pods become ready: the former mode's objects go when its pods have gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.install.site import SYSTEM, Site, account_with, grant, install_with
from support.lab import shared_cluster
from zonewise.install.rights import rights_to_install
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.nodes import kwok

pytestmark = pytest.mark.xdist_group("install-modes")  # one control plane for all of them

CONTROLLER = ("-n", SYSTEM, "-l", "app.kubernetes.io/name=zonewise-controller")


@pytest.fixture(scope="module")
def site(run_directory: shared_cluster.Run) -> Iterator[Site]:
    plane = run_directory.private(programs=tuple(Program))
    kwok.up(plane.kubeconfig, kwok.manifests(2, ("zone-a", "zone-b"), tainted=False))
    yield Site(plane)
    run_directory.remove(plane)


def test_mode_change_removes_the_former_modes_rights(site: Site) -> None:
    site.run_ok("install", "--only", "slices", "--mode", "overlay")
    diff = site.run("install", "--only", "slices", "--mode", "own", "--diff")
    assert diff.exit_code == 1
    changes = site.run_ok("install", "--only", "slices", "--mode", "own")
    _check_diff_shows_deletions(diff.stdout, changes)
    assert "ClusterRole zonewise-controller" in site.leftovers()
    assert "ClusterRole zonewise-overlay-controller" not in site.leftovers()
    assert "MutatingWebhookConfiguration zonewise-overlay" not in site.leftovers()
    site.clean()


def test_dns_replaces_dns_node(site: Site) -> None:
    site.run_ok("install", "--only", "dns-node")
    diff = site.run("install", "--only", "dns", "--diff")
    changes = site.run_ok("install", "--only", "dns")
    _check_diff_shows_deletions(diff.stdout, changes)
    leftovers = site.leftovers()
    assert "Deployment zonewise-dns" in leftovers
    assert "DaemonSet zonewise-dns" not in leftovers
    assert f"Namespace {SYSTEM}" in leftovers, "the namespace may hold other components"
    assert not site.run_ok("install", "--only", "dns", "--diff"), "deleted objects are no difference"
    site.clean()


def _check_diff_shows_deletions(diff: str, changes: list[str]) -> None:
    deleted = [line.removesuffix(" deleted") for line in changes if line.endswith(" deleted")]
    assert deleted
    for name in deleted:
        assert f"--- live/{name}\n+++ applied/{name}\n@@ -1," in diff
    assert diff.count(" +0,0 @@") == len(deleted), "exactly the deleted objects, in full"


def test_replacing_needs_the_right_to_delete(site: Site, tmp_path: Path) -> None:
    needed = rights_to_install(SYSTEM)
    site.run_ok("install", "--mode", "own")
    config = account_with(site, [right for right in needed if right.verb != "delete"], tmp_path)
    assert "forbidden: delete of rolebindings" in install_with(config, "--force-conflicts").stderr
    grant(site, needed)
    result = install_with(config)
    assert result.returncode == 0, result.stderr
    assert "ClusterRole zonewise-controller" not in site.leftovers()
    site.clean()
    site.kubectl("delete", "clusterrole/installer", "clusterrolebinding/installer", "serviceaccount/installer")


def test_rights_stay_while_an_old_pod_is_ending(site: Site) -> None:
    """It may lead until it has ended, though the Deployment no longer counts it."""
    site.run_ok("install", "--only", "slices", "--wait")
    (pod, *_) = site.kubectl("get", "pods", *CONTROLLER, "-o", "name").split()
    site.kubectl("-n", SYSTEM, "patch", pod, "--type=merge", "-p", '{"metadata": {"finalizers": ["example.com/hold"]}}')
    message = site.refused("install", "--only", "slices", "--mode", "own", "--timeout", "15")
    assert message == f"pods of deployment.apps/zonewise-controller do not end within 15 s: {pod.partition('/')[2]}"
    assert "ClusterRole zonewise-overlay-controller" in site.leftovers()
    status = json.loads(site.kubectl("-n", SYSTEM, "get", "deployment/zonewise-controller", "-o", "json"))["status"]
    assert status["replicas"] == status["updatedReplicas"] == status["readyReplicas"] == 2, "by its status it is done"

    site.kubectl("-n", SYSTEM, "patch", pod, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    site.run_ok("install", "--only", "slices", "--mode", "own")
    assert "ClusterRole zonewise-overlay-controller" not in site.leftovers()
    site.clean()
