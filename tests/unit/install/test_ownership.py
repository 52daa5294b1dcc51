"""Whose a live object is: by the record of who applied it, and by its labels."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.install.apply import missing
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues, documents
from zonewise.install.decide.ownership import made_by_programs, why_foreign, with_ownership

Json = dict[str, Any]
OURS = {"app.kubernetes.io/part-of": "zonewise", "zonewise.dev/instance": "here"}


def live(*managers: tuple[str, str], kind: str = "Secret", labels: Json | None = None, **more: Any) -> Json:
    fields = [{"manager": manager, "operation": operation} for manager, operation in managers]
    metadata: Json = {"name": "it", "namespace": "here", "labels": labels or {}}
    return {"kind": kind, "metadata": metadata | ({"managedFields": fields} if fields else {}), **more}


INSTALLED, KUBECTL = ("zonewise-install", "Apply"), ("kubectl", "Update")
CASES = {
    "applied by 0.1": (live(INSTALLED), ""),
    "applied by this release": (live(INSTALLED, labels=OURS), ""),
    "written by others, too": (live(INSTALLED, KUBECTL), ""),
    "made by kubectl": (live(KUBECTL), "`zonewise install` did not make it, but kubectl"),
    "made by kubectl from our manifests": (
        live(KUBECTL, labels=OURS),
        "`zonewise install` did not make it, but kubectl",
    ),
    "updated under our name": (live(("zonewise-install", "Update")), "`zonewise install` did not make it"),
    "without any record": (live(), "`zonewise install` did not make it"),
    "of an install elsewhere": (
        live(INSTALLED, labels=OURS | {"zonewise.dev/instance": "there"}),
        "it belongs to the Zonewise in namespace there",
    ),
    "the kind that another install left": (
        live(INSTALLED, kind="CustomResourceDefinition", labels={"zonewise.dev/instance": "there"}),
        "",
    ),
}


@pytest.mark.parametrize(("found", "why"), CASES.values(), ids=CASES)
def test_owner_is_who_applied(found: Json, why: str) -> None:
    assert why_foreign(found, "here") == why


def test_adopt_takes_only_what_has_our_label() -> None:
    assert not why_foreign(live(KUBECTL, labels=OURS), "here", adopt=True)
    assert why_foreign(live(KUBECTL), "here", adopt=True)
    assert why_foreign(live(KUBECTL, labels=OURS), "elsewhere", adopt=True)


@pytest.mark.parametrize(
    ("manager", "labels", "foreign"),
    [
        pytest.param(INSTALLED, {}, False, id="of 0.1"),
        pytest.param(INSTALLED, OURS, True, id="of this release, whose accounts have a record"),
        pytest.param(KUBECTL, {}, True, id="of kubectl"),
    ],
)
def test_account_without_a_record_follows_its_binding(manager: tuple[str, str], labels: Json, foreign: bool) -> None:
    subjects = [{"kind": "ServiceAccount", "name": "it", "namespace": "here"}]
    account = live(kind="ServiceAccount")
    binding = live(manager, kind="ClusterRoleBinding", labels=labels, subjects=subjects)
    first, _ = with_ownership([({}, account), ({}, binding)], "here")
    assert bool(first.foreign) == foreign


def test_programs_objects_are_those_nobody_else_wrote() -> None:
    assert made_by_programs(live(("zonewise", "Update")))
    assert not made_by_programs(live(("zonewise", "Update"), KUBECTL))
    assert not made_by_programs(live())


@pytest.mark.parametrize("component", InstallComponent)
@pytest.mark.parametrize("mode", InstallMode)
def test_every_object_says_whose_it_is(component: InstallComponent, mode: InstallMode) -> None:
    for document in documents([component], mode, ManifestValues(image="", namespace="here")):
        assert document["metadata"]["labels"].items() >= OURS.items(), document["metadata"]["name"]


def deployment(generation: int = 1, **status: int) -> Json:
    return {"kind": "Deployment", "metadata": {"generation": generation}, "spec": {"replicas": 2}, "status": status}


def daemon_set(**status: int) -> Json:
    return {"kind": "DaemonSet", "metadata": {"generation": 1}, "status": {"observedGeneration": 1, **status}}


READINESS = {
    "absent": (None, "it is not there"),
    "old pods are ready, the change is unseen": (
        deployment(2, observedGeneration=1, replicas=2, updatedReplicas=2, readyReplicas=2),
        "its controller has not seen it",
    ),
    "one new pod beside the old ones": (
        deployment(observedGeneration=1, replicas=3, updatedReplicas=1, readyReplicas=2),
        "1 of 2 pods are of the new version, 2 of a former one",
    ),
    "both new, one old pod is among the ready ones": (
        deployment(observedGeneration=1, replicas=3, updatedReplicas=2, readyReplicas=2),
        "2 of 2 pods are of the new version, 1 of a former one",
    ),
    "new pods, one of them ready": (
        deployment(observedGeneration=1, replicas=2, updatedReplicas=2, readyReplicas=1),
        "1 of 2 pods are ready",
    ),
    "done": (deployment(observedGeneration=1, replicas=2, updatedReplicas=2, readyReplicas=2), ""),
    "a daemon of a former version": (
        daemon_set(desiredNumberScheduled=3, updatedNumberScheduled=2, numberReady=3),
        "2 of 3 pods are ready",
    ),
    "daemons done": (daemon_set(desiredNumberScheduled=3, updatedNumberScheduled=3, numberReady=3), ""),
}


@pytest.mark.parametrize(("workload", "lack"), READINESS.values(), ids=READINESS)
def test_a_workload_is_ready_with_new_pods_only(workload: Json | None, lack: str) -> None:
    assert missing(workload) == lack
