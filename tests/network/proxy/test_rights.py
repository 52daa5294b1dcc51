"""RBAC of the proxy's manifests: the proxy uses exactly the rights that they grant."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from network.proxy.cluster import COMMAND, LABEL, RunningProxy, started
from support.install.deployed import Deployed, audit_flags, documents, scopes, token_in
from support.kube.fault_proxy import FaultProxy
from support.process import scrape
from support.slices import cluster
from support.waiting import eventually
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.network import namespaces
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES

ACCOUNT = "zonewise-proxy"
MANIFESTS = ("proxy.yaml", "proxy-all.yaml")
METRICS = "https://127.0.0.1:10357/metrics"


@pytest.fixture
def node() -> Iterator[str]:
    """A network namespace for a node."""
    name = f"zwr{os.getpid()}"
    namespaces.ip([f"netns add {name}"])
    namespaces.ip(["link set lo up"], name)
    yield name
    namespaces.remove([name])


def _container(manifest: str, name: str) -> dict[str, Any]:
    (daemon_set,) = [document for document in documents(manifest) if document["kind"] == "DaemonSet"]
    spec = daemon_set["spec"]["template"]["spec"]
    return next(item for item in (*spec["initContainers"], *spec["containers"]) if item["name"] == name)


async def test_proxy_uses_all_of_its_rights_and_no_other(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path, node: str
) -> None:
    """Beside kube-proxy, and instead of it, then with kube-proxy's settings of the kernel."""
    plane = await asyncio.to_thread(private_cluster, flags=audit_flags(tmp_path))
    site = Deployed(plane, tmp_path)

    def listen(port: int) -> socket.socket:
        return namespaces.inside(node, lambda: socket.create_server(("127.0.0.1", port)))

    async with cluster.connect(plane) as client, FaultProxy(plane.server, listen) as link:
        await client.create(NODES, {"metadata": {"name": "a1"}})
        body = {"metadata": {"name": "web", "labels": LABEL}, "spec": {"ports": [{"name": "main", "port": 80}]}}
        address = (await client.create(SERVICES.whole(), body, "default"))["spec"]["clusterIP"]
        await client.create(ENDPOINT_SLICES, _slice(), "default")
        for manifest in MANIFESTS:
            site.apply(manifest)
            await asyncio.to_thread(namespaces.run, namespaces.command(node, [*COMMAND, *_flags(manifest, "prepare")]))
            assert _kernel_setting(node, "nf_conntrack_acct") == 1
            expected_seconds = 3600 if manifest == "proxy-all.yaml" else 60
            assert _kernel_setting(node, "nf_conntrack_tcp_timeout_close_wait") == expected_seconds
            config = link.kubeconfig(await site.kubeconfig(client, ACCOUNT), tmp_path)
            log = tmp_path / f"{manifest}.log"
            running = started(RunningProxy(config, "a1", node, log, _flags(manifest, "proxy")))
            await asyncio.to_thread(running.__enter__)
            try:
                await eventually(lambda: address in _listed(node), "it serves the Service")
                await eventually(lambda: "metrics served" in log.read_text(), "it serves metrics")  # noqa: B023
                assert await asyncio.to_thread(_scraped, node, token_in(config)) == 403
                expected = scopes(manifest, ACCOUNT)
                await eventually(lambda: site.used(manifest, ACCOUNT) == expected, "every right is used")  # noqa: B023
                assert not site.refused(ACCOUNT)
            finally:
                await asyncio.to_thread(running.__exit__, None, None, None)


def _scraped(node: str, token: str) -> int:
    return namespaces.inside(node, lambda: scrape(METRICS, token))[0]


def _flags(manifest: str, container: str) -> tuple[str, ...]:
    """Without --log-format: tests read the default format."""
    flags = (flag.replace("$(NODE_NAME)", "a1") for flag in _container(manifest, container)["args"][1:])
    return tuple(flag for flag in flags if not flag.startswith("--log-format"))


def _slice() -> dict[str, Any]:
    return {
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web", **LABEL}},
        "addressType": "IPv4",
        "ports": [{"name": "main", "port": 8080}],
        "endpoints": [{"addresses": ["10.244.1.1"]}],
    }


def _kernel_setting(node: str, name: str) -> int:
    return int(namespaces.inside(node, lambda: Path("/proc/sys/net/netfilter", name).read_text()))


def _listed(node: str) -> str:
    return namespaces.run(namespaces.command(node, ["nft", "list", "map", "ip", "zonewise", "svc"]))


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_proxy_container_has_one_capability(manifest: str) -> None:
    security = _container(manifest, "proxy")["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert not security.get("privileged")
    assert not security["allowPrivilegeEscalation"]
