"""Pods on real nodes: containers with logs, exec, volumes, tokens, probes, traffic and limits."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from support.lab.kubectl import Kubectl, fetched
from support.lab.pods import Json, Pods, addresses, eventually
from zonewise.api.names import REGION, ZONE
from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import status
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide import oci_image
from zonewise.lab.decide.node_labels import RACK
from zonewise.lab.nodes import image_store, images, nodes
from zonewise.lab.state import Lab, LabOptions

FIRST, SECOND = "zone-a-1", "zone-b-1"
IMAGE = "busybox:1"
PORT = 8080
SERVER = {
    "image": IMAGE,
    "command": ["sh", "-c", f"mkdir /www; echo $POD >/www/index.html; echo serving; exec httpd -f -p {PORT} -h /www"],
    "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
}


def test_real_nodes_are_ready_with_labels_and_pod_ranges(real_lab: Lab) -> None:
    listed = ControlPlane.attach(real_lab.directory).request("GET", "/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in listed] == [FIRST, SECOND]
    for node, plan in zip(listed, nodes.plan_of(real_lab).nodes, strict=True):
        labels = node["metadata"]["labels"]
        assert (labels[ZONE], labels[REGION], labels[RACK]) == (plan.zone, "lab", plan.rack)
        assert node["spec"]["podCIDRs"] == [str(prefix) for prefix in plan.pods]
        assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
        known = [entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP"]
        assert known == [str(address) for address in plan.address]
    report = status.of(real_lab)
    assert [(zone.real_nodes, zone.ready_nodes, zone.nodes) for zone in report.zones] == [(1, 1, 1), (1, 1, 1)]
    running = {process.name for process in report.processes if process.running and process.memory_bytes}
    assert {f"{unit}-{node}" for unit in ("containerd", "kubelet") for node in (FIRST, SECOND)} <= running


async def test_pod_has_logs_exec_files_and_a_forwarded_port(real_pods: Pods, tmp_path: Path) -> None:
    kubectl = Kubectl(real_pods.lab, real_pods.namespace)
    await real_pods.create("one", FIRST, SERVER)
    await real_pods.ready("one")
    assert kubectl.run("logs", "one") == "serving\n"
    assert kubectl.inside("one", "hostname; id -u") == "one\n0\n"
    (tmp_path / "file").write_text("copied")
    kubectl.run("cp", str(tmp_path / "file"), "one:/tmp/file")
    assert kubectl.inside("one", "cat /tmp/file") == "copied"
    with kubectl.forwarded("one", PORT) as port:
        assert fetched(port) == "one\n"


async def test_pod_has_config_maps_token_and_shared_scratch_space(real_pods: Pods) -> None:
    plane = ControlPlane.attach(real_pods.lab.directory)
    namespace = f"/api/v1/namespaces/{real_pods.namespace}"
    plane.request("POST", f"{namespace}/configmaps", {"metadata": {"name": "settings"}, "data": {"colour": "green"}})
    mounts = [{"name": "settings", "mountPath": "/settings"}, {"name": "scratch", "mountPath": "/scratch"}]
    sleeping: dict[str, Any] = {"image": IMAGE, "command": ["sleep", "3600"], "volumeMounts": mounts}
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "scratch", "emptyDir": {}}]
    second = {**sleeping, "name": "second"}
    body = {"nodeName": FIRST, "containers": [{**sleeping, "name": "main"}, second], "volumes": volumes}
    plane.request("POST", f"{namespace}/pods", {"metadata": {"name": "two"}, "spec": body})
    await real_pods.ready("two")
    kubectl = Kubectl(real_pods.lab, real_pods.namespace)
    kubectl.inside("two", "cat /settings/colour >/scratch/colour")
    assert kubectl.inside("two", "cat /scratch/colour", "second") == "green"
    token = kubectl.inside("two", "cat /var/run/secrets/kubernetes.io/serviceaccount/token")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = plane.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert answer["user"]["username"] == f"system:serviceaccount:{real_pods.namespace}:default"
    assert answer["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["two"]


async def test_pods_reach_each_other_across_nodes_and_by_service(real_pods: Pods) -> None:
    plane = ControlPlane.attach(real_pods.lab.directory)
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
    made = plane.request("POST", f"/api/v1/namespaces/{real_pods.namespace}/services", service)
    for name, node in (("here", FIRST), ("there", SECOND)):
        await real_pods.create(name, node, SERVER, labels={"app": "web"})
    await real_pods.ready("here")
    v4, v6 = addresses(await real_pods.ready("there"))
    kubectl = Kubectl(real_pods.lab, real_pods.namespace)
    assert kubectl.inside("here", f"wget -qO- http://{v4}:{PORT}/") == "there\n"
    assert kubectl.inside("here", f"wget -qO- 'http://[{v6}]:{PORT}/'") == "there\n"

    async def answers() -> bool:
        script = f"for i in $(seq 20); do timeout 3 wget -qO- http://{made['spec']['clusterIP']}/; done"
        return set(kubectl.inside("here", f"{script} || true").split()) == {"here", "there"}

    assert await eventually(answers, "both endpoints of the Service answer")


def ask_kubelet(address: IPv4Address, authority: Path, token: str = "") -> int:
    """HTTP status of a GET of the kubelet's pods; the certificate must be the lab's."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://{address}:10250/pods", headers=headers)
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_kubelet_refuses_anonymous_users_and_those_without_the_right(real_lab: Lab) -> None:
    plane = ControlPlane.attach(real_lab.directory)
    address = nodes.plan_of(real_lab).node(FIRST).address.v4
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = plane.request("POST", path, request)["status"]["token"]
    assert ask_kubelet(address, plane.ca_path) == 401
    assert ask_kubelet(address, plane.ca_path, "no token") == 401
    assert ask_kubelet(address, plane.ca_path, token) == 403
    assert "pods" in plane.request("GET", f"/api/v1/nodes/{FIRST}/proxy/stats/summary")


async def test_limits_are_enforced_in_the_cgroup_of_the_node(real_pods: Pods) -> None:
    limited = {"image": IMAGE, "command": ["sh", "-c", "tail /dev/zero"], "resources": {"limits": {"memory": "24Mi"}}}
    await real_pods.create("greedy", FIRST, limited, restartPolicy="Never")
    pod = await real_pods.when("greedy", lambda pod: pod["status"]["phase"] == "Failed", "has failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def places_with(mark: str) -> list[str]:
    return [place for place in ("etc", "var", "run", "tmp", "usr") if Path("/", place, mark).exists()]


async def test_files_written_to_the_node_stay_off_the_machine(real_pods: Pods) -> None:
    mark = f"{real_pods.namespace}-mark"
    script = f"for place in /host/etc /host/var /host/run /host/tmp; do echo x >$place/{mark}; done; echo x >/host/usr/{mark}; sleep 3600"
    writing = {
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        "securityContext": {"privileged": True},
    }
    await real_pods.create("writer", FIRST, writing, volumes=[{"name": "host", "hostPath": {"path": "/"}}])
    await real_pods.ready("writer")
    kubectl = Kubectl(real_pods.lab, real_pods.namespace)
    assert kubectl.inside("writer", f"cd /host; ls */{mark}").split() == [
        f"{p}/{mark}" for p in ("etc", "run", "tmp", "var")
    ]
    assert places_with(mark) == []


async def test_mounts_of_one_pod_reach_another_through_the_node(real_pods: Pods) -> None:
    """As a storage driver's do."""
    path = "/var/lib/kubelet/plugins/example"
    volumes = [{"name": "shared", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]

    def container(propagation: str, script: str) -> Json:
        mount = {"name": "shared", "mountPath": "/shared", "mountPropagation": propagation}
        rights = {"privileged": propagation == "Bidirectional"}
        return {"image": IMAGE, "command": ["sh", "-c", script], "volumeMounts": [mount], "securityContext": rights}

    script = (
        "mkdir -p /shared/point && mount -t tmpfs none /shared/point && echo mounted >/shared/point/file; sleep 3600"
    )
    await real_pods.create("reader", FIRST, container("HostToContainer", "sleep 3600"), volumes=volumes)
    await real_pods.ready("reader")
    await real_pods.create("driver", FIRST, container("Bidirectional", script), volumes=volumes)
    await real_pods.ready("driver")
    kubectl = Kubectl(real_pods.lab, real_pods.namespace)

    async def seen() -> bool:
        return kubectl.inside("reader", "cat /shared/point/file || true") == "mounted\n"

    assert await eventually(seen, "the mount is seen")
    assert path not in Path("/proc/self/mountinfo").read_text()  # noqa: ASYNC240 - a file of the kernel


async def test_pod_in_the_nodes_namespaces_sees_only_the_node(real_pods: Pods) -> None:
    sleeping = {"image": IMAGE, "command": ["sleep", "3600"]}
    await real_pods.create("host", FIRST, sleeping, hostPID=True, hostNetwork=True)
    await real_pods.ready("host")
    shown = Kubectl(real_pods.lab, real_pods.namespace).inside("host", "hostname; cat /proc/1/cmdline; ip -o addr")
    plan = nodes.plan_of(real_pods.lab).node(FIRST)
    assert shown.startswith(f"{FIRST}\n")
    assert "zonewise.lab.nodes.node_init" in shown
    assert f"inet {plan.address.v4}/" in shown


def in_node(lab: Lab, node: str, *argv: str) -> str:
    return subprocess.run(nodes.exec_argv(lab, node, argv), capture_output=True, text=True, check=True).stdout


async def test_nodes_share_images_but_no_change_to_them(real_pods: Pods) -> None:
    lab, kubectl = real_pods.lab, Kubectl(real_pods.lab, real_pods.namespace)
    sleeping = {"image": IMAGE, "command": ["sleep", "3600"]}
    await real_pods.create("writer", FIRST, sleeping)
    await real_pods.ready("writer")
    kubectl.inside("writer", "echo changed >/etc/passwd; echo x >/bin/mark; rm /bin/ls")
    await real_pods.delete("writer", grace_seconds=0)
    in_node(lab, FIRST, "ctr", "-n", images.NAMESPACE, "images", "rm", "--sync", images.BUSYBOX)
    try:
        assert images.BUSYBOX not in in_node(lab, FIRST, "ctr", "-n", images.NAMESPACE, "images", "ls", "-q").split()
        await real_pods.create("reader", SECOND, sleeping)
        await real_pods.ready("reader")
        assert kubectl.inside("reader", "ls -d /bin/ls /bin/mark 2>/dev/null || true") == "/bin/ls\n"
        assert kubectl.inside("reader", "cat /etc/passwd").startswith("root:")
        assert not list(image_store.directory().glob("*/*/snapshots/*/fs/bin/mark"))
    finally:
        nodes.load_image(lab, lab.directory / "images" / "busybox.tar")
    await real_pods.create("again", FIRST, sleeping)
    await real_pods.ready("again")


def write_greeting(archive: Path, name: str) -> None:
    busybox = Path("/bin/busybox").read_bytes()
    files = oci_image.ImageFiles(programs={"bin/busybox": busybox}, links={"bin/sh": "busybox"})
    archive.write_bytes(oci_image.archive(name, files, {"Cmd": ["/bin/sh", "-c", "echo greetings"]}, "amd64"))


async def test_loaded_image_runs_on_every_node(real_pods: Pods, tmp_path: Path) -> None:
    name, archive = "example.test/greeting:v1", tmp_path / "greeting.tar"
    write_greeting(archive, name)
    assert nodes.load_image(real_pods.lab, archive) == [name]
    for node in (FIRST, SECOND):
        await real_pods.create(node, node, {"image": name}, restartPolicy="Never")
        await real_pods.when(node, lambda pod: pod["status"]["phase"] == "Succeeded", "has succeeded")
        assert Kubectl(real_pods.lab, real_pods.namespace).run("logs", node) == "greetings\n"


def test_load_reports_what_is_no_image(real_lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        nodes.load_image(real_lab, tmp_path / "missing.tar")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ZonewiseError, match="could not be loaded"):
        nodes.load_image(real_lab, tmp_path / "text")


def test_load_needs_real_nodes(real_lab: Lab, tmp_path: Path) -> None:
    without = Lab(name="x", directory=tmp_path, slot=0, binaries=tmp_path, options=LabOptions())
    with pytest.raises(UsageError, match="no real nodes"):
        nodes.load_image(without, tmp_path / "any.tar")
