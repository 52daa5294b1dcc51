"""Environment variables, references and command lines of containers, as Kubernetes documents them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from zonewise.lab.decide import environment
from zonewise.lab.decide.addresses import plan
from zonewise.lab.decide.environment import ContainerConfigError, PodEnvironment
from zonewise.lab.decide.podspec import PodMetadata, RunPod, RunPodSpec
from zonewise.objects import Service

NODE = plan("lab", 0, ("a",), 1).nodes[0]
ZONE = "topology.kubernetes.io/zone"
SERVICES = msgspec.convert(
    [
        {
            "metadata": {"name": "big-shop"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "web-ui", "port": 80}, {"name": "x", "port": 81}]},
        },
        {"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}},
    ],
    list[Service],
)
POD_ENVIRONMENT = PodEnvironment(
    host=NODE.address,
    addresses=NODE.pods.address(7),
    topology={ZONE: "a"},
    api_server=("100.64.0.1", 6443),
    services=SERVICES,
    config_maps={"settings": {"colour": "blue"}},
)


def variables(*env: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, str]:
    pod = _pod(env, labels or {}, spec)
    return environment.variables(pod, pod.spec.containers[0], POD_ENVIRONMENT)


def _pod(env: tuple[dict[str, Any], ...], labels: dict[str, str], spec: dict[str, Any]) -> RunPod:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": labels, "annotations": {"note": "hi"}}
    container = {"name": "c", "command": ["x"], "env": env, "volumeMounts": [{"name": "files", "mountPath": "/f"}]}
    volumes = [{"name": "files", "configMap": {"name": "mounted"}}, {"name": "other", "configMap": {"name": "unused"}}]
    body = {"nodeName": "a-1", "serviceAccountName": "sa", "containers": [container], "volumes": volumes, **spec}
    return msgspec.convert({"metadata": metadata, "spec": body}, RunPod)


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


FIELDS = {
    "metadata.name": "p",
    "metadata.namespace": "n",
    "metadata.uid": "u",
    "metadata.annotations['note']": "hi",
    "metadata.labels['absent']": "",
    "spec.nodeName": "a-1",
    "spec.serviceAccountName": "sa",
    "status.hostIP": "100.64.128.10",
    "status.podIP": "100.64.129.7",
    "status.podIPs": "100.64.129.7,fd7a:6f6e:6500:101::7",
}


@pytest.mark.parametrize(("path", "value"), FIELDS.items(), ids=FIELDS)
def test_field_refs_resolve(path: str, value: str) -> None:
    assert variables(field("F", path))["F"] == value


def test_zone_comes_from_the_pods_label_or_its_node() -> None:
    path = f"metadata.labels['{ZONE}']"
    assert variables(field("Z", path))["Z"] == "a"
    assert variables(field("Z", path), labels={ZONE: "b"})["Z"] == "b"


def test_service_variables_are_set_unless_disabled() -> None:
    env = variables()
    assert env["BIG_SHOP_SERVICE_HOST"] == "10.96.0.9"
    assert env["BIG_SHOP_SERVICE_PORT"] == "80"
    assert env["BIG_SHOP_SERVICE_PORT_WEB_UI"] == "80"
    assert env["BIG_SHOP_SERVICE_PORT_X"] == "81"
    assert not any(name.startswith("HEADLESS") for name in env)
    assert variables(enableServiceLinks=False) == {
        "HOSTNAME": "p",
        "KUBERNETES_SERVICE_HOST": "100.64.0.1",
        "KUBERNETES_SERVICE_PORT": "6443",
    }


EXPANSIONS = {
    "a variable": ("$(A)", "1"),
    "within text": ("x$(A)y$(B)", "x1y2"),
    "unknown stays": ("$(NOPE)", "$(NOPE)"),
    "an escape": ("$$(A)", "$(A)"),
    "a lone dollar": ("$A $", "$A $"),
    "a shell's braces": ("${A}", "${A}"),
}


@pytest.mark.parametrize(("text", "expanded"), EXPANSIONS.values(), ids=EXPANSIONS)
def test_variable_references_are_expanded(text: str, expanded: str) -> None:
    assert environment.expand(text, {"A": "1", "B": "2"}) == expanded


def test_variables_see_earlier_ones_and_commands_see_all() -> None:
    pod = _pod(({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}), {}, {})
    container = msgspec.structs.replace(pod.spec.containers[0], command=("run", "$(B)"), args=("$(HOSTNAME)",))
    env = environment.variables(pod, container, POD_ENVIRONMENT)
    assert environment.command_line(container, env) == ["run", "12", "p"]


def test_values_from_config_maps() -> None:
    def reference(key: str, **more: Any) -> dict[str, Any]:
        return {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": key, **more}}}

    assert variables(reference("colour"))["C"] == "blue"
    assert "C" not in variables(reference("size", optional=True))
    with pytest.raises(ContainerConfigError, match="variable C: no key size in configmap settings"):
        variables(reference("size"))
    pod = _pod((reference("colour"),), {}, {})
    assert environment.config_maps_of(pod, pod.spec.containers[0]) == {"settings", "mounted"}


def test_unsupported_references_are_refused() -> None:
    with pytest.raises(ContainerConfigError, match=r"fieldRef spec\.priority is not supported"):
        variables(field("F", "spec.priority"))
    with pytest.raises(
        ContainerConfigError, match="variable S: the lab supports value, fieldRef and configMapKeyRef only"
    ):
        variables({"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})


@pytest.mark.parametrize(
    ("spec", "server", "first"),
    [
        ({"dns_policy": "ClusterFirst"}, "10.96.0.10", "search shop.svc.cluster.local svc.cluster.local cluster.local"),
        ({"dns_policy": "ClusterFirst"}, "", ""),
        ({"dns_policy": "Default"}, "10.96.0.10", ""),
        ({"dns_policy": "ClusterFirst", "host_network": True}, "10.96.0.10", ""),
    ],
)
def test_resolver_follows_the_dns_policy(spec: dict[str, Any], server: str, first: str) -> None:
    pod = RunPod(metadata=PodMetadata(name="a", namespace="shop"), spec=RunPodSpec(**spec))
    assert environment.resolver(pod, server).partition("\n")[0] == first
