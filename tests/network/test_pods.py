"""Nodes and their pods: logs, exec, volumes, tokens, probes, traffic, limits, images, and killed programs of a node."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from support.lab.kubectl import Kubectl, fetched
from support.lab.machine import ZONEWISE
from support.lab.pods import IMAGE, PORT, SERVER, SLEEPER, Json, Pods, addresses, eventually, main_status
from zonewise.api.names import REGION, ZONE
from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import status
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide import oci_image
from zonewise.lab.decide.kubelet_config import KERNEL_SETTINGS
from zonewise.lab.decide.node_labels import RACK
from zonewise.lab.nodes import image_store, images, node_programs, nodes
from zonewise.lab.state import Lab, LabOptions
from zonewise.lab.status import LabHealth

FIRST, SECOND = "zone-a-1", "zone-b-1"


def test_more_than_eight_nodes_find_room_for_their_watchers(small_lab: Lab) -> None:
    assert small_lab.nodes_per_zone
    assert int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) >= 8192


@pytest.mark.parametrize(("name", "value"), KERNEL_SETTINGS.items())
def test_node_has_settings_of_its_own_where_a_kubelet_would_change_the_machines(
    small_lab: Lab, name: str, value: int
) -> None:
    path = Path("/proc/sys", name)
    before = path.read_text()
    script = f"cat {path} && echo {value + 1} >{path} && cat {path}; echo {value} >{path}"
    assert in_node(small_lab, FIRST, "sh", "-c", script).split() == [str(value), str(value + 1)]
    assert path.read_text() == before


def test_user_namespace_in_a_node_gets_a_proc_of_its_own(small_lab: Lab) -> None:
    """As a pod with `hostUsers: false` does, where runc can map its users; the kernel's rule is mount_too_revealing."""
    script = "mount -t proc proc /tmp && cat /tmp/self/uid_map"
    argv = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", script)
    assert in_node(small_lab, FIRST, *argv).split() == ["0", "0", "1"]


def test_nodes_are_ready_with_labels_and_pod_ranges(small_lab: Lab) -> None:
    listed = ControlPlane.attach(small_lab.directory).request("GET", "/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in listed] == [FIRST, SECOND]
    for node, plan in zip(listed, nodes.plan_of(small_lab).nodes, strict=True):
        labels = node["metadata"]["labels"]
        assert (labels[ZONE], labels[REGION], labels[RACK]) == (plan.zone, "lab", plan.rack)
        assert node["spec"]["podCIDRs"] == [str(prefix) for prefix in plan.pods]
        assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
        known = [entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP"]
        assert known == [str(address) for address in plan.address]
    report = status.of(small_lab)
    assert [(zone.namespace_nodes, zone.ready_nodes) for zone in report.zones] == [(1, 1), (1, 1)]
    running = {process.name for process in report.processes if process.running and process.memory_bytes}
    assert {f"{unit}-{node}" for unit in ("containerd", "kubelet") for node in (FIRST, SECOND)} <= running


async def test_pod_has_logs_exec_files_and_a_forwarded_port(small_pods: Pods, tmp_path: Path) -> None:
    kubectl = Kubectl(small_pods.lab, small_pods.namespace)
    await small_pods.serve("one", FIRST)
    assert kubectl.run("logs", "one") == "serving\n"
    assert kubectl.inside("one", "hostname; id -u") == "one\n0\n"
    (tmp_path / "file").write_text("copied")
    kubectl.run("cp", str(tmp_path / "file"), "one:/tmp/file")
    assert kubectl.inside("one", "cat /tmp/file") == "copied"
    with kubectl.forwarded("one", PORT) as port:
        assert fetched(port) == "one\n"


async def test_pod_has_config_maps_token_and_shared_scratch_space(small_pods: Pods) -> None:
    plane = ControlPlane.attach(small_pods.lab.directory)
    namespace = f"/api/v1/namespaces/{small_pods.namespace}"
    plane.request("POST", f"{namespace}/configmaps", {"metadata": {"name": "settings"}, "data": {"colour": "green"}})
    mounts = [{"name": "settings", "mountPath": "/settings"}, {"name": "scratch", "mountPath": "/scratch"}]
    sleeping = {**SLEEPER, "image": IMAGE, "volumeMounts": mounts}
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "scratch", "emptyDir": {}}]
    second = {**sleeping, "name": "second"}
    body = {"nodeName": FIRST, "containers": [{**sleeping, "name": "main"}, second], "volumes": volumes}
    plane.request("POST", f"{namespace}/pods", {"metadata": {"name": "two"}, "spec": body})
    await small_pods.ready("two")
    kubectl = Kubectl(small_pods.lab, small_pods.namespace)
    kubectl.inside("two", "cat /settings/colour >/scratch/colour")
    assert kubectl.inside("two", "cat /scratch/colour", "second") == "green"
    token = kubectl.inside("two", "cat /var/run/secrets/kubernetes.io/serviceaccount/token")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = plane.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert answer["user"]["username"] == f"system:serviceaccount:{small_pods.namespace}:default"
    assert answer["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["two"]


async def test_pods_reach_each_other_across_nodes_and_by_service(small_pods: Pods) -> None:
    plane = ControlPlane.attach(small_pods.lab.directory)
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
    made = plane.request("POST", f"/api/v1/namespaces/{small_pods.namespace}/services", service)
    for name, node in (("here", FIRST), ("there", SECOND)):
        await small_pods.create(name, node, SERVER, labels={"app": "web"})
    await small_pods.ready("here")
    there = await small_pods.ready("there")
    v4, v6 = addresses(there)
    plan = small_pods.node(SECOND)
    assert there["status"]["hostIP"] == str(plan.address.v4)
    assert IPv4Address(v4) in plan.pods.v4
    assert IPv6Address(v6) in plan.pods.v6
    kubectl = Kubectl(small_pods.lab, small_pods.namespace)
    assert kubectl.inside("here", f"wget -qO- http://{v4}:{PORT}/") == "there\n"
    assert kubectl.inside("here", f"wget -qO- 'http://[{v6}]:{PORT}/'") == "there\n"

    async def answers() -> bool:
        script = f"for i in $(seq 20); do timeout 3 wget -qO- http://{made['spec']['clusterIP']}/; done"
        return set(kubectl.inside("here", f"{script} || true").split()) == {"here", "there"}

    assert await eventually(answers, "both endpoints of the Service answer")


async def test_lab_exec_and_logs_reach_pods_and_nodes(small_pods: Pods) -> None:
    lab = small_pods.lab
    pod = await small_pods.serve("inner", FIRST)
    name = f"{small_pods.namespace}/inner"

    def zonewise(*arguments: str) -> str:
        return subprocess.run([ZONEWISE, "lab", *arguments], check=True, capture_output=True, text=True).stdout

    assert f"inet {addresses(pod)[0]}/" in zonewise("exec", "--name", lab.name, name, "--", "ip", "-o", "addr")
    assert zonewise("logs", "--name", lab.name, name) == "serving\n"
    assert f"inet {small_pods.node(FIRST).address.v4}/24" in zonewise(
        "exec", "--name", lab.name, FIRST, "--", "ip", "-o", "addr"
    )


def ask_kubelet(address: IPv4Address, authority: Path, token: str = "", path: str = "/pods") -> tuple[int, str]:
    """HTTP status and body of a GET; the certificate must be the lab's."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://{address}:10250{path}", headers=headers)
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return int(response.status), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def token_of(plane: ControlPlane, namespace: str) -> str:
    """Of the default service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = plane.request("POST", path, request)["status"]["token"]
    return token


def test_kubelet_refuses_anonymous_users_and_those_without_the_right(small_lab: Lab) -> None:
    plane = ControlPlane.attach(small_lab.directory)
    address = nodes.plan_of(small_lab).node(FIRST).address.v4
    assert ask_kubelet(address, plane.ca_path)[0] == 401
    assert ask_kubelet(address, plane.ca_path, "no token")[0] == 401
    assert ask_kubelet(address, plane.ca_path, token_of(plane, "default"))[0] == 403
    assert "pods" in plane.request("GET", f"/api/v1/nodes/{FIRST}/proxy/stats/summary")


async def test_kubelet_gives_metrics_server_the_usage_of_pods_and_nodes(small_pods: Pods) -> None:
    """What `kubectl top` shows, for a user with metrics-server's one right at kubelets."""
    plane = ControlPlane.attach(small_pods.lab.directory)
    space, address = small_pods.namespace, nodes.plan_of(small_pods.lab).node(FIRST).address.v4
    await small_pods.create("busy", FIRST, {"command": ["sh", "-c", "while :; do :; done"]})
    await small_pods.ready("busy")
    rule = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": space}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": space}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    plane.request("POST", f"{rbac}/clusterroles", {"metadata": {"name": space}, "rules": [rule]})
    binding = {"metadata": {"name": space}, "subjects": [subject], "roleRef": role}
    plane.request("POST", f"{rbac}/clusterrolebindings", binding)
    wanted = [
        "node_cpu_usage_seconds_total ",
        "node_memory_working_set_bytes ",
        f'pod_cpu_usage_seconds_total{{namespace="{space}",pod="busy"}} ',
        f'pod_memory_working_set_bytes{{namespace="{space}",pod="busy"}} ',
        f'container_cpu_usage_seconds_total{{container="main",namespace="{space}",pod="busy"}} ',
        f'container_memory_working_set_bytes{{container="main",namespace="{space}",pod="busy"}} ',
    ]
    token = token_of(plane, space)

    async def used() -> bool:
        code, text = ask_kubelet(address, plane.ca_path, token, "/metrics/resource")
        assert code == 200
        usage = [line.removeprefix(name) for name in wanted for line in text.splitlines() if line.startswith(name)]
        return len(usage) == len(wanted) and all(float(value.split()[0]) > 0 for value in usage)

    try:
        await eventually(used, "the usage is known")
        assert ask_kubelet(address, plane.ca_path, token)[0] == 403
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            plane.request("DELETE", f"{rbac}/{kind}/{space}")


async def test_limits_are_enforced_in_the_cgroup_of_the_node(small_pods: Pods) -> None:
    limited = {"command": ["sh", "-c", "tail /dev/zero"], "resources": {"limits": {"memory": "24Mi"}}}
    await small_pods.create("greedy", FIRST, limited, restartPolicy="Never")
    pod = await small_pods.when("greedy", lambda pod: pod["status"]["phase"] == "Failed", "has failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def places_with(mark: str) -> list[str]:
    return [place for place in ("etc", "var", "run", "tmp", "usr") if Path("/", place, mark).exists()]


async def test_files_written_to_the_node_stay_off_the_machine(small_pods: Pods) -> None:
    mark = f"{small_pods.namespace}-mark"
    script = f"for place in /host/etc /host/var /host/run /host/tmp; do echo x >$place/{mark}; done; echo x >/host/usr/{mark}; sleep 3600"
    writing = {
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        "securityContext": {"privileged": True},
    }
    await small_pods.create("writer", FIRST, writing, volumes=[{"name": "host", "hostPath": {"path": "/"}}])
    await small_pods.ready("writer")
    kubectl = Kubectl(small_pods.lab, small_pods.namespace)
    assert kubectl.inside("writer", f"cd /host; ls */{mark}").split() == [
        f"{p}/{mark}" for p in ("etc", "run", "tmp", "var")
    ]
    assert places_with(mark) == []


async def test_mounts_of_one_pod_reach_another_through_the_node(small_pods: Pods) -> None:
    """As a storage driver's do."""
    path = "/var/lib/kubelet/plugins/example"
    volumes = [{"name": "shared", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]

    def container(propagation: str, script: str) -> Json:
        mount = {"name": "shared", "mountPath": "/shared", "mountPropagation": propagation}
        rights = {"privileged": propagation == "Bidirectional"}
        return {"command": ["sh", "-c", script], "volumeMounts": [mount], "securityContext": rights}

    script = (
        "mkdir -p /shared/point && mount -t tmpfs none /shared/point && echo mounted >/shared/point/file; sleep 3600"
    )
    await small_pods.create("reader", FIRST, container("HostToContainer", "sleep 3600"), volumes=volumes)
    await small_pods.ready("reader")
    await small_pods.create("driver", FIRST, container("Bidirectional", script), volumes=volumes)
    await small_pods.ready("driver")
    kubectl = Kubectl(small_pods.lab, small_pods.namespace)

    async def seen() -> bool:
        return kubectl.inside("reader", "cat /shared/point/file || true") == "mounted\n"

    assert await eventually(seen, "the mount is seen")
    assert path not in Path("/proc/self/mountinfo").read_text()  # noqa: ASYNC240 - a file of the kernel


async def test_pod_in_the_nodes_namespaces_sees_only_the_node(small_pods: Pods) -> None:
    await small_pods.create("host", FIRST, SLEEPER, hostPID=True, hostNetwork=True)
    await small_pods.ready("host")
    shown = Kubectl(small_pods.lab, small_pods.namespace).inside("host", "hostname; cat /proc/1/cmdline; ip -o addr")
    plan = nodes.plan_of(small_pods.lab).node(FIRST)
    assert shown.startswith(f"{FIRST}\n")
    assert "zonewise.lab.nodes.node_init" in shown
    assert f"inet {plan.address.v4}/" in shown


def in_node(lab: Lab, node: str, *argv: str) -> str:
    return subprocess.run(nodes.exec_argv(lab, node, argv), capture_output=True, text=True, check=True).stdout


async def test_nodes_share_images_but_no_change_to_them(small_pods: Pods) -> None:
    lab, kubectl = small_pods.lab, Kubectl(small_pods.lab, small_pods.namespace)
    await small_pods.create("writer", FIRST, SLEEPER)
    await small_pods.ready("writer")
    kubectl.inside("writer", "echo changed >/etc/passwd; echo x >/bin/mark; rm /bin/ls")
    await small_pods.delete("writer", grace_seconds=0)
    in_node(lab, FIRST, "ctr", "-n", images.NAMESPACE, "images", "rm", "--sync", images.BUSYBOX)
    try:
        assert images.BUSYBOX not in in_node(lab, FIRST, "ctr", "-n", images.NAMESPACE, "images", "ls", "-q").split()
        await small_pods.create("reader", SECOND, SLEEPER)
        await small_pods.ready("reader")
        assert kubectl.inside("reader", "ls -d /bin/ls /bin/mark 2>/dev/null || true") == "/bin/ls\n"
        assert kubectl.inside("reader", "cat /etc/passwd").startswith("root:")
        assert not list(image_store.directory().glob("*/*/snapshots/*/fs/bin/mark"))
    finally:
        nodes.load_image(lab, lab.directory / "images" / "busybox.tar")
    await small_pods.create("again", FIRST, SLEEPER)
    await small_pods.ready("again")


def write_greeting(archive: Path, name: str) -> None:
    busybox = Path("/bin/busybox").read_bytes()
    files = oci_image.ImageFiles(programs={"bin/busybox": busybox}, links={"bin/sh": "busybox"})
    archive.write_bytes(oci_image.archive(name, files, {"Cmd": ["/bin/sh", "-c", "echo greetings"]}, "amd64"))


async def test_loaded_image_runs_on_every_node(small_pods: Pods, tmp_path: Path) -> None:
    name, archive = "example.test/greeting:v1", tmp_path / "greeting.tar"
    write_greeting(archive, name)
    assert nodes.load_image(small_pods.lab, archive) == [name]
    for node in (FIRST, SECOND):
        await small_pods.create(node, node, {"image": name}, restartPolicy="Never")
        await small_pods.when(node, lambda pod: pod["status"]["phase"] == "Succeeded", "has succeeded")
        assert Kubectl(small_pods.lab, small_pods.namespace).run("logs", node) == "greetings\n"


def test_load_reports_what_is_no_image(small_lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        nodes.load_image(small_lab, tmp_path / "missing.tar")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ZonewiseError, match="could not be loaded"):
        nodes.load_image(small_lab, tmp_path / "text")


def test_load_needs_nodes(tmp_path: Path) -> None:
    without = Lab(name="x", directory=tmp_path, slot=0, binaries=tmp_path, options=LabOptions())
    with pytest.raises(UsageError, match="no nodes"):
        nodes.load_image(without, tmp_path / "any.tar")


def pid_of(lab: Lab, unit: str) -> int:
    return node_programs.units(lab.directory, FIRST, [unit])[0].pid


@pytest.mark.parametrize("unit", [*node_programs.UNITS, node_programs.KUBE_PROXY, node_programs.KUBE_ROUTER])
async def test_killed_program_is_replaced_and_its_pods_go_on(small_pods: Pods, unit: str) -> None:
    lab = small_pods.lab
    await small_pods.create("sleeper", FIRST, SLEEPER)
    before = main_status(await small_pods.ready("sleeper"))
    killed = pid_of(lab, unit)
    os.kill(killed, signal.SIGKILL)

    async def replaced() -> bool:
        return pid_of(lab, unit) not in (0, killed)

    assert await eventually(replaced, f"{unit} runs again")

    async def answers() -> bool:
        return Kubectl(lab, small_pods.namespace).succeeds("exec", "sleeper", "--", "true")

    assert await eventually(answers, "exec works again")
    await small_pods.create("next", FIRST, SLEEPER)
    await small_pods.ready("next")
    after = main_status(await small_pods.ready("sleeper"))
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)

    async def ready() -> bool:
        return status.of(lab).health is LabHealth.READY

    assert await eventually(ready, "the lab is ready again")
