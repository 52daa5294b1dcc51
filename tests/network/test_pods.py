"""Pods on namespace nodes behave as with a kubelet: start, probes, restarts, termination, and status."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.lab.pods import SHOP_PORT, Json, Pods, addresses, eventually, fetch, main_status
from zonewise.errors import UsageError
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.objects import CONFIG_MAPS, ENDPOINT_SLICES, SERVICES

# Reports SIGTERM; the short sleeps let the shell handle the signal at once.
POLITE = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.1; done"
STUBBORN = "trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done"


def shell(script: str, **more: Any) -> Json:
    return {"command": ["sh", "-c", script], **more}


def terminated(pod: Json) -> Json:
    state: Json = main_status(pod)["state"].get("terminated", {})
    return state


async def test_pod_gets_its_name_node_and_addresses(pods: Pods) -> None:
    script = 'echo "$NAME $NODE $IP $HOSTNAME $KUBERNETES_SERVICE_HOST $(NODE) end"; exec sleep 3600'
    fields = {"NAME": "metadata.name", "NODE": "spec.nodeName", "IP": "status.podIP"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    await pods.create("who", "zone-b-2", shell(script, env=env))
    pod = await pods.ready("who")
    await pods.logged("who", "end")
    host = str(nodes.plan_of(pods.lab).host.v4)
    assert pods.log("who").split() == ["who", "zone-b-2", addresses(pod)[0], "who", host, "zone-b-2", "end"]
    assert pod["status"]["hostIP"] == str(pods.node("zone-b-2").address.v4)
    assert pod["metadata"]["labels"].get("topology.kubernetes.io/zone", "zone-b") == "zone-b"


async def test_readiness_probe_sets_endpoint_readiness(pods: Pods) -> None:
    port = {"port": 80, "targetPort": SHOP_PORT}
    await pods.client.create(
        SERVICES, {"metadata": {"name": "s"}, "spec": {"selector": {"app": "s"}, "ports": [port]}}, pods.namespace
    )
    quick = {"httpGet": {"path": "/healthz", "port": SHOP_PORT}, "periodSeconds": 1, "failureThreshold": 1}
    pod = await pods.shop("s", "zone-a-2", {"readinessProbe": quick}, labels={"app": "s"})

    async def is_ready(expected: bool) -> bool:
        slices = await pods.client.list(ENDPOINT_SLICES, pods.namespace)
        return [e.conditions.ready for s in slices.items for e in s.endpoints or ()] == [expected]

    await eventually(lambda: is_ready(True), "the endpoint is ready")
    fetch(pods.inside(pod), f"http://127.0.0.1:{SHOP_PORT}/fail")
    await eventually(lambda: is_ready(False), "the endpoint is not ready")
    fetch(pods.inside(pod), f"http://127.0.0.1:{SHOP_PORT}/recover")
    await eventually(lambda: is_ready(True), "the endpoint is ready again")
    assert main_status(await pods.get("s"))["restartCount"] == 0


async def test_liveness_restarts_and_startup_delays_other_probes(pods: Pods) -> None:
    alive = {"exec": {"command": ["test", "-e", "alive"]}, "periodSeconds": 1, "failureThreshold": 2}
    started = {"exec": {"command": ["test", "-e", "begun"]}, "periodSeconds": 1, "failureThreshold": 100}
    listening = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    script = (
        "touch alive; if [ ! -e again ]; then touch again; sleep 2; fi; touch begun; exec python -m http.server 8080"
    )
    probes = {"livenessProbe": alive, "startupProbe": started, "readinessProbe": listening}
    await pods.create("live", "zone-a-1", shell(script, **probes), terminationGracePeriodSeconds=1)
    pod = await pods.ready("live")
    assert main_status(pod)["restartCount"] == 0, "the startup probe must delay the liveness probe"
    _pod_file(pods, "live", "alive").unlink()
    await pods.when("live", lambda pod: main_status(pod)["restartCount"] == 1, "was restarted")
    await pods.ready("live")


def _pod_file(pods: Pods, pod: str, name: str) -> Path:
    return nodes.log_path(pods.lab, f"{pods.namespace}/{pod}").parents[1] / name


async def test_crash_is_restarted_at_once_then_backed_off(pods: Pods) -> None:
    await pods.create("crash", "zone-c-1", shell("echo run; exit 3"))

    def backing_off(pod: Json) -> bool:
        return main_status(pod)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"

    pod = await pods.when("crash", backing_off, "backs off")
    assert main_status(pod)["restartCount"] == 1
    assert main_status(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert pod["status"]["phase"] == "Running"
    await pods.when("crash", lambda pod: main_status(pod)["restartCount"] == 2, "is restarted after the back-off")
    await pods.logged("crash", "run\n" * 3)


async def test_completed_pods_report_phase_exit_code_and_restarts(pods: Pods) -> None:
    await asyncio.gather(
        pods.create("well", "zone-a-1", shell("exit 0"), restartPolicy="Never"),
        pods.create("badly", "zone-a-2", shell("exit 5"), restartPolicy="Never"),
        pods.create("killed", "zone-b-1", shell("kill -9 $$$$"), restartPolicy="Never"),
        pods.create("at-last", "zone-b-2", shell("[ -e once ] || { touch once; exit 1; }"), restartPolicy="OnFailure"),
    )
    outcomes = {}
    for name in ("well", "badly", "killed", "at-last"):
        pod = await pods.when(name, lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"}, "has ended")
        outcomes[name] = (pod["status"]["phase"], terminated(pod)["exitCode"], main_status(pod)["restartCount"])
    assert outcomes == {
        "well": ("Succeeded", 0, 0),
        "badly": ("Failed", 5, 0),
        "killed": ("Failed", 137, 0),
        "at-last": ("Succeeded", 0, 1),
    }
    await pods.released(await pods.get("well"))


async def test_init_containers_run_in_order_before_main(pods: Pods) -> None:
    inits = [{"name": f"i{n}", "image": "none", **shell(f"sleep 0.2; echo i{n} >> order")} for n in (1, 2)]
    await pods.create(
        "ordered", "zone-c-2", shell("echo main >> order; cat order; exec sleep 3600"), initContainers=inits
    )
    await pods.ready("ordered")
    await pods.logged("ordered", "main")
    assert pods.log("ordered").split() == ["i1", "i2", "main"]


async def test_pod_that_stops_on_sigterm_is_removed_at_once(pods: Pods) -> None:
    await pods.create("polite", "zone-a-1", shell(POLITE), terminationGracePeriodSeconds=600)
    pod = await pods.ready("polite")
    await pods.logged("polite", "up")
    await pods.delete("polite")
    await pods.gone("polite")
    assert not namespaces.path(pods.inside(pod)).exists()


async def test_pod_that_ignores_sigterm_is_killed_after_its_grace(pods: Pods) -> None:
    await pods.create("stubborn", "zone-b-1", shell(STUBBORN), terminationGracePeriodSeconds=3)
    pod = await pods.ready("stubborn")
    await pods.logged("stubborn", "up")
    await pods.delete("stubborn")
    await pods.logged("stubborn", "asked")
    terminating = await pods.get("stubborn")
    assert "deletionTimestamp" in terminating["metadata"]
    assert "running" in main_status(terminating)["state"], "it keeps running while it terminates"
    assert namespaces.pids_in([pods.inside(pod)])
    await pods.gone("stubborn")
    assert namespaces.pids_in([pods.inside(pod)]) == []


async def test_pre_stop_hook_runs_before_sigterm(pods: Pods) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hooked >> order"]}}}
    script = "trap 'echo asked >> order' TERM; while [ ! -e order ] || [ $(wc -l < order) -lt 2 ]; do sleep 0.1; done; cat order; exec sleep 3600"
    await pods.create("hooked", "zone-a-2", shell(script, lifecycle=hook), terminationGracePeriodSeconds=5)
    await pods.ready("hooked")
    await pods.delete("hooked")
    await pods.logged("hooked", "hooked\nasked\n")
    await pods.gone("hooked")


async def test_forced_deletion_leaves_nothing_behind(pods: Pods) -> None:
    pod = await pods.shop("forced", "zone-c-1")
    await pods.delete("forced", grace_seconds=0)
    await pods.released(pod)


async def test_containers_that_cannot_start_report_the_reason(pods: Pods) -> None:
    key = {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}
    await asyncio.gather(
        pods.create("empty", "zone-a-1", {}),
        pods.create("unknown", "zone-a-1", {"command": ["no-such-program"]}),
        pods.create("early", "zone-a-1", shell("echo $K; exec sleep 3600", env=[key])),
    )

    def waits_for(reason: str) -> Any:
        return lambda pod: main_status(pod)["state"].get("waiting", {}).get("reason") == reason

    await pods.when("empty", waits_for("NoCommand"), "reports a missing command")
    unknown = await pods.when("unknown", waits_for("CreateContainerConfigError"), "reports the configuration error")
    assert "no command 'no-such-program' on this machine" in main_status(unknown)["state"]["waiting"]["message"]
    await pods.when("early", waits_for("CreateContainerConfigError"), "waits for its config map")
    await pods.client.create(CONFIG_MAPS, {"metadata": {"name": "later"}, "data": {"k": "value"}}, pods.namespace)
    await pods.ready("early")
    await pods.logged("early", "value")


async def test_config_map_and_empty_dir_volumes_are_mounted(pods: Pods) -> None:
    await pods.client.create(
        CONFIG_MAPS, {"metadata": {"name": "files"}, "data": {"greeting": "hello"}}, pods.namespace
    )
    volumes = [{"name": "files", "configMap": {"name": "files"}}, {"name": "scratch", "emptyDir": {}}]
    mounts = [{"name": "files", "mountPath": "/etc/files"}, {"name": "scratch", "mountPath": "/scratch"}]
    script = "cp etc/files/greeting scratch/copy; cat scratch/copy; exec sleep 3600"
    await pods.create("files", "zone-b-1", shell(script, volumeMounts=mounts), volumes=volumes)
    await pods.ready("files")
    await pods.logged("files", "hello")


async def test_host_network_pod_has_the_nodes_address(pods: Pods) -> None:
    pod = await pods.shop(
        "host", "zone-b-2", {"env": [{"name": "PORT", "value": "18080"}], "readinessProbe": None}, hostNetwork=True
    )
    assert addresses(pod) == [str(address) for address in pods.node("zone-b-2").address]

    async def responds() -> bool:
        try:
            return fetch(pods.node("zone-a-1").namespace, f"http://{addresses(pod)[0]}:18080/") == {
                "pod": "",
                "node": "",
                "zone": "",
            }
        except OSError:
            return False

    await eventually(responds, "the pod answers at the node's address")
    await pods.delete("host")
    await pods.gone("host")


async def test_commands_run_inside_pods_and_nodes(pods: Pods) -> None:
    await pods.create("inner", "zone-c-2", shell("echo here; exec sleep 3600"))
    pod = await pods.ready("inner")
    await pods.logged("inner", "here")

    def ip_addresses(target: str) -> str:
        argv = nodes.exec_argv(pods.lab, target, ["ip", "-o", "addr"])
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def zonewise(*arguments: str) -> str:
        argv = [Path(sys.executable).with_name("zonewise"), "lab", *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    name = f"{pods.namespace}/inner"
    assert f"{addresses(pod)[0]}/32" in ip_addresses(name)
    assert f"{addresses(pod)[0]}/32" in zonewise("exec", "--name", pods.lab.name, name, "--", "ip", "-o", "addr")
    assert zonewise("logs", "--name", pods.lab.name, name) == "here\n"
    assert f"{pods.node('zone-c-2').address.v4}/24" in ip_addresses("zone-c-2")
    with pytest.raises(UsageError, match=r"no pod default/absent .*the namespace nodes are zone-a-1, zone-a-2, "):
        nodes.exec_argv(pods.lab, "absent", ["true"])
    with pytest.raises(UsageError, match="no container 'x', only main"):
        nodes.log_path(pods.lab, f"{pods.namespace}/inner", "x")
