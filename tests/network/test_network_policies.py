"""NetworkPolicies of `zonewise install`, by packets: pods of other namespaces reach the ports that a program serves, and no other.

kube-router enforces them in the lab. In each pod's network namespace the test listens on one more port, which no policy names:
it is refused, until the policy is deleted.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from support.lab.kubectl import Kubectl
from support.lab.machine import ZONEWISE
from support.lab.pods import IMAGE, SLEEPER, Json, Pods, condition
from support.lab.probed_pod import UNNAMED, ProbedPod, Reached, probed
from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.install import components
from zonewise.install.components import Document, InstallComponent, InstallMode, ManifestValues
from zonewise.lab.build import container_images
from zonewise.lab.build.container_images import ImageTarget
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.demo import installed
from zonewise.lab.nodes import nodes
from zonewise.lab.progress import ProgressReporter
from zonewise.lab.state import Lab

pytestmark = pytest.mark.timeout(1200)  # the first test builds the image, unless it is in the cache

PROGRAMS = (InstallComponent.SLICES, InstallComponent.DISRUPTION, InstallComponent.DASHBOARD, InstallComponent.DNS)
CSI_CONTROLLER = "zonewise-csi-controller"
"""It runs with a Ceph cluster only. Here another pod has its labels and ports."""
SERVED = {
    "zonewise-controller": {"health", "https-metrics"},
    "zonewise-webhook": {"https", "health", "https-metrics"},
    "zonewise-disruption": {"health", "https-metrics"},
    "zonewise-guard": {"https", "health", "https-metrics"},
    "zonewise-dashboard": {"https", "health", "https-metrics"},
    "zonewise-dns": {"dns", "dns-tcp", "health", "https-metrics"},
    CSI_CONTROLLER: {"health", "https-metrics"},
}
"""Names of ports that everybody may reach, by the name of the policy and its pods."""
IPV4_ONLY = {"zonewise-dashboard": {"https"}}
"""Served at IPv4 addresses only."""
RULES_WITHIN_SECONDS = 90.0
CLIENTS = {"near": "zone-a-1", "far": "zone-b-1"}
NAME = "app.kubernetes.io/name"


@pytest.fixture(scope="module")
def manifests(small_lab: Lab) -> Iterator[list[Document]]:
    """Installed, with every pod ready, but for the storage driver, of which there is the policy and a pod in its place."""
    image = container_images.ensure(ImageTarget.PROGRAMS, ProgressReporter(sys.stderr))
    nodes.load_image(small_lab, image.path)
    programs = components.documents(PROGRAMS, InstallMode.OVERLAY, ManifestValues(image=image.name))
    driver = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, ManifestValues(image=image.name))
    policy, deployment = (_named(driver, kind, CSI_CONTROLLER) for kind in ("NetworkPolicy", "Deployment"))
    installed.apply(small_lab, [*programs, policy])
    plane = ControlPlane.attach(small_lab.directory)
    plane.wait_service_account(SYSTEM_NAMESPACE)
    plane.request("POST", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods", _stand_in(deployment))
    installed.wait(small_lab, programs)
    yield [*programs, policy]
    Kubectl(small_lab, SYSTEM_NAMESPACE).run("delete", "pod", CSI_CONTROLLER, "--now")
    subprocess.run([ZONEWISE, "uninstall", "--yes", "--purge"], env=environment(small_lab), check=True)


def _named(documents: Sequence[Document], kind: str, name: str) -> Document:
    (document,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return document


def _stand_in(deployment: Document) -> Json:
    """A pod with the labels and ports of the Deployment's."""
    template = deployment["spec"]["template"]
    ports = [port for container in template["spec"]["containers"] for port in container.get("ports", ())]
    container = {"name": "main", "image": IMAGE, "ports": ports, **SLEEPER}
    return {
        "metadata": {"name": CSI_CONTROLLER, "labels": template["metadata"]["labels"]},
        "spec": {"containers": [container]},
    }


def environment(lab: Lab) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(lab.node_kubeconfig)}


@pytest.fixture
async def clients(small_pods: Pods) -> dict[str, str]:
    """Network namespaces of pods on both nodes, in a namespace that no manifest knows."""
    for name, node in CLIENTS.items():
        await small_pods.create(name, node, SLEEPER)
    return {name: small_pods.inside(await small_pods.ready(name)) for name in CLIENTS}


def pod_of(plane: ControlPlane, namespace: str, name: str) -> Json:
    """One that is ready."""
    pods = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return next(
        pod for pod in pods if pod["metadata"]["labels"].get(NAME) == name and condition(pod, "Ready") == "True"
    )


@pytest.mark.parametrize("name", SERVED)
async def test_other_pods_reach_only_served_ports_until_the_policy_is_gone(
    small_pods: Pods, manifests: list[Document], clients: dict[str, str], name: str
) -> None:
    plane = ControlPlane.attach(small_pods.lab.directory)
    policy = _named(manifests, "NetworkPolicy", name)
    namespace = policy["metadata"]["namespace"]
    pod = pod_of(plane, namespace, name)
    with probed(pod, small_pods.inside(pod), serves=name != CSI_CONTROLLER) as target:
        served = {
            address: SERVED[name] - (IPV4_ONLY.get(name, set()) if ":" in address else set())
            for address in target.addresses
        }
        await until_reached(target, clients, served)
        plane.request("DELETE", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{name}")
        try:
            await until_reached(target, clients, {address: names | UNNAMED for address, names in served.items()})
        finally:
            await asyncio.to_thread(installed.apply, small_pods.lab, [policy])


async def until_reached(target: ProbedPod, clients: Mapping[str, str], expected: Reached) -> None:
    """By every client. Rules follow the policies and pods within a second or so."""
    deadline = time.monotonic() + RULES_WITHIN_SECONDS
    wanted = dict.fromkeys(clients, expected)
    while (reached := {name: target.reached_from(client) for name, client in clients.items()}) != wanted:
        assert time.monotonic() < deadline, f"{reached}, not {wanted}"
        await asyncio.sleep(0.2)


def test_api_server_reaches_the_webhooks(small_lab: Lab, manifests: list[Document]) -> None:
    assert manifests
    doctor = [ZONEWISE, "doctor", "-o", "json"]
    done = subprocess.run(doctor, env=environment(small_lab), check=False, capture_output=True, text=True, timeout=300)
    levels = {finding["code"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}
    assert levels["WebhookReached"] == "Fine", done.stdout
