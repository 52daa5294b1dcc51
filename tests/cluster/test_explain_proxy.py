"""`proxy --explain` against an API server: addresses that the proxy would not serve, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from zonewise.cli.main import main
from zonewise.lab.controlplane.controlplane import ControlPlane

LABEL = {"service.kubernetes.io/service-proxy-name": "zonewise"}
OF_A_POD, OF_NOBODY = "10.250.8.9", "192.0.2.1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
UNKNOWN = "the cluster's service ranges are unknown; set --service-cidr"
IN_SERVICE_RANGE, IN_POD_RANGE = "it is within the cluster's service ranges", "it is within the cluster's pod ranges"

Explain = Callable[..., tuple[str, str]]


@pytest.fixture
def of_a_service(cluster: ControlPlane) -> str:
    address: str = cluster.request("GET", "/api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"]
    return address


@pytest.fixture
def explain(
    cluster: ControlPlane, namespace: str, of_a_service: str, capsys: pytest.CaptureFixture[str]
) -> Iterator[Explain]:
    """Stdout and stderr about a Service that claims addresses of a pod, of a Service and of nobody."""
    spec: dict[str, Any] = {"podCIDR": "10.250.8.0/24", "podCIDRs": ["10.250.8.0/24"]}
    cluster.request("POST", "/api/v1/nodes", {"metadata": {"name": namespace}, "spec": spec})
    spec = {"ports": [{"port": 80}], "externalIPs": [OF_A_POD, of_a_service, OF_NOBODY]}
    body = {"metadata": {"name": "thief", "labels": LABEL}, "spec": spec}
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/services", body)

    def run(*flags: str, kubeconfig: Path = cluster.kubeconfig) -> tuple[str, str]:
        structlog.reset_defaults()  # commands configure logging themselves
        command = ["proxy", "--explain", f"{namespace}/thief", "--node-name", namespace, "--kubeconfig"]
        with pytest.raises(SystemExit) as exited:
            main([*command, str(kubeconfig), *flags])
        shown = capsys.readouterr()
        assert not exited.value.code, shown.err
        return shown.out, shown.err

    yield run
    cluster.request("DELETE", f"/api/v1/nodes/{namespace}")


def _barred(out: str) -> dict[str, str]:
    """Why, by address."""
    lines = [line.strip() for line in out.splitlines()]
    claims = [line.removeprefix("left out: external address ") for line in lines if line.startswith("left out: ")]
    return {address: why for address, _, why in (claim.partition(" is not served: ") for claim in claims)}


def _served(out: str, address: str) -> bool:
    return f"\n  {address}:80 " in out


def test_addresses_of_pods_and_services_are_barred(explain: Explain, of_a_service: str) -> None:
    out, err = explain()
    assert _barred(out) == {OF_A_POD: IN_POD_RANGE, of_a_service: IN_SERVICE_RANGE}
    assert [_served(out, address) for address in (OF_A_POD, of_a_service, OF_NOBODY)] == [False, False, True]
    assert err == ""


def test_flags_count_as_they_do_for_the_server(explain: Explain, of_a_service: str) -> None:
    out, _ = explain("--ignore-external-ips")
    assert _barred(out)[OF_NOBODY] == "this proxy ignores externalIPs"
    assert not _served(out, OF_NOBODY)
    out, _ = explain("--cluster-cidr", "192.0.2.0/24")
    assert _served(out, OF_NOBODY), "a node has pod ranges"


@pytest.fixture
def reader(cluster: ControlPlane, namespace: str) -> Iterator[Path]:
    """A user who may read all but ServiceCIDRs."""
    kinds = {"": ["nodes", "namespaces", "services"], "discovery.k8s.io": ["endpointslices"]}
    rules = [{"apiGroups": [group], "resources": plurals, "verbs": ["get", "list"]} for group, plurals in kinds.items()]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": namespace}
    metadata = {"name": namespace}
    cluster.request("POST", f"{RBAC}/clusterroles", {"metadata": metadata, "rules": rules})
    binding = {"metadata": metadata, "roleRef": role, "subjects": [user]}
    cluster.request("POST", f"{RBAC}/clusterrolebindings", binding)
    yield cluster.add_user(namespace, namespace)
    for kind in ("clusterrolebindings", "clusterroles"):
        cluster.request("DELETE", f"{RBAC}/{kind}/{namespace}")


def test_unreadable_service_ranges_are_asked_for(explain: Explain, reader: Path, of_a_service: str) -> None:
    out, err = explain(kubeconfig=reader)
    assert _barred(out)[OF_NOBODY] == UNKNOWN
    assert err == "note: you may not list ServiceCIDRs; name the cluster's with --service-cidr\n"
    out, err = explain("--service-cidr", f"{of_a_service}/32", kubeconfig=reader)
    assert _barred(out) == {OF_A_POD: IN_POD_RANGE, of_a_service: IN_SERVICE_RANGE}
    assert err == ""
