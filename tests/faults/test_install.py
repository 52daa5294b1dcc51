"""Installation, change of the mode, removal and installation again on real nodes, while pods ask a Service all the time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from support.fault_report import Report
from support.lab.machine import ZONEWISE
from support.process import wait_for
from support.upgrade_load import Questions
from zonewise.lab import labs
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.demo.app import SERVED_BY_ZONEWISE
from zonewise.lab.demo.zone_answers import CATALOG, NAMESPACE
from zonewise.lab.state import Lab, LabOptions

pytestmark = pytest.mark.timeout(1800)

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
ROUNDS = 3
PROBES_SECONDS = 30.0
COMPONENTS = ("--only", "slices,disruption,proxy", "--wait", "--timeout", "300")
OURS, STOCK = "*,-endpointslice-controller", "*"
STEPS = (("own", OURS), ("overlay", STOCK))
"""The mode, and the controllers of the controller manager that it needs."""
ACCOUNTS = {
    "own": {"controller", "disruption", "guard", "proxy"},
    "overlay": {"overlay-controller", "webhook", "disruption", "guard", "proxy"},
}


def zonewise(lab: Lab, *arguments: str) -> str:
    command = [sys.executable, str(ZONEWISE), *arguments, "--kubeconfig", str(lab.node_kubeconfig)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def install(lab: Lab, mode: str, questions: Questions) -> None:
    assert lab.image is not None
    questions.during = f"install --mode {mode}"
    zonewise(lab, "install", "--mode", mode, *COMPONENTS, "--image", lab.image.name)
    labels = {"metadata": {"labels": SERVED_BY_ZONEWISE}}
    plane(lab).request("PATCH", f"/api/v1/namespaces/{NAMESPACE}/services/{CATALOG}", labels)


def plane(lab: Lab) -> ControlPlane:
    return ControlPlane.attach(lab.directory)


def let_control(lab: Lab, controllers: str) -> None:
    """The controller manager starts again with these, as docs/upgrade.md asks for."""
    changed = plane(lab)
    changed.settings = msgspec.structs.replace(changed.settings, controllers=controllers)
    changed.restart(Program.CONTROLLER_MANAGER)


def pods(lab: Lab) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = plane(lab).request("GET", "/api/v1/namespaces/zonewise-system/pods")["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def accounts(lab: Lab, since: datetime) -> set[str]:
    """Checks that every program has one of its own, that none was restarted, and that new pods' probes were green in time."""
    listed = pods(lab)
    seen = {pod["metadata"]["labels"]["app.kubernetes.io/name"]: pod["spec"]["serviceAccountName"] for pod in listed}
    assert len(set(seen.values())) == len(seen), seen
    assert {status["restartCount"] for pod in listed for status in pod["status"]["containerStatuses"]} == {0}
    new = [pod for pod in listed if datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) >= since]
    waits = {pod["metadata"]["name"]: seconds_until_ready(pod) for pod in new}
    print(f"seconds until ready: {waits}")
    assert {name: seconds for name, seconds in waits.items() if seconds > PROBES_SECONDS} == {}
    return {account.removeprefix("zonewise-") for account in seen.values()}


def seconds_until_ready(pod: Mapping[str, Any]) -> float:
    """From the start of its first container to the moment since which all are ready."""
    (ready,) = (condition for condition in pod["status"]["conditions"] if condition["type"] == "Ready")
    assert ready["status"] == "True", pod["metadata"]["name"]
    started = min(status["state"]["running"]["startedAt"] for status in pod["status"]["containerStatuses"])
    return (datetime.fromisoformat(ready["lastTransitionTime"]) - datetime.fromisoformat(started)).total_seconds()


def endpoints(lab: Lab) -> int:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    slices = plane(lab).request("GET", f"{path}?labelSelector=kubernetes.io%2Fservice-name%3D{CATALOG}")["items"]
    return len({json.dumps(endpoint["targetRef"]) for one in slices for endpoint in one["endpoints"] or ()})


def scale(lab: Lab, replicas: int) -> None:
    """Whoever writes slices now must write this, too."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{CATALOG}"
    plane(lab).request("PATCH", path, {"spec": {"replicas": replicas}})
    wait_for(lambda: endpoints(lab) == replicas)


@pytest.mark.xdist_group("install-lab")
@pytest.mark.skipif(not LONG, reason="takes minutes: `make test-faults` runs it")
def test_no_request_is_lost_while_zonewise_is_installed_changed_and_removed(report: Report) -> None:
    name = f"test-{os.getpid()}-install"
    options = LabOptions(zones=zone_names(3), nodes_per_zone=1, kube_proxy=True, demo=True, zonewise=True)
    try:
        lab = labs.up(name, options, lambda _step: None)
        questions = Questions(lab, by_name=False)  # without Zonewise no server answers names
        replicas = endpoints(lab)
        with questions.going_on():
            for _ in range(ROUNDS):
                for mode, controllers in STEPS:
                    questions.during = f"controllers {controllers}"
                    begin = datetime.now(UTC).replace(microsecond=0)
                    let_control(lab, controllers)
                    install(lab, mode, questions)
                    assert accounts(lab, begin) == ACCOUNTS[mode]
                    replicas += 1
                    scale(lab, replicas)
                questions.during = "uninstall"
                zonewise(lab, "uninstall", "--yes")
                assert pods(lab) == []
                replicas += 1  # not fewer: a pod that ends is asked until kube-proxy has noticed
                scale(lab, replicas)
        assert questions.unanswered == []
        row = {"component": "all of a lab", "fault": "installed, mode changed twice, removed"}
        report(**row, rounds=ROUNDS, requests=questions.answered.total(), what="requests")
    finally:
        labs.down(name, lambda _step: None)
