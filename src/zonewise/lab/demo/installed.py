"""Zonewise installed in a lab: the manifests of `zonewise install`, from the project's image, under their own accounts."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Sequence

from zonewise.errors import ZonewiseError
from zonewise.install import apply as apply_manifests
from zonewise.install import components
from zonewise.install.components import InstallComponent, InstallMode
from zonewise.install.decide.document import Document
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab import processes, slots
from zonewise.lab.ceph import driver as csi_driver
from zonewise.lab.retry import patiently
from zonewise.lab.state import Lab

_READY_WITHIN_SECONDS = 300.0
DASHBOARD = "dashboard"
_DASHBOARD_PORT = 7  # of the lab's own ports, after those of its programs


def documents(lab: Lab) -> list[Document]:
    """But for the dashboard, which runs beside the lab, where a browser is."""
    chosen = [component for component in components.DEFAULT if component is not InstallComponent.DASHBOARD]
    assert lab.image is not None, "a lab with Zonewise has its image"
    values = components.ManifestValues(image=lab.image.name)
    documents = components.documents([*chosen, InstallComponent.DNS], InstallMode.OVERLAY, values)
    driver = csi_driver.documents(lab, lab.csi_image.name) if lab.csi_image else []
    return [*documents, _dns_service(lab.cluster_dns), *driver]


def _dns_service(address: str) -> Document:
    """Clusters have it before they have any DNS server: its address stands in every pod's resolv.conf."""
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": "dns-tcp"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": address, "selector": {"k8s-app": "kube-dns"}, "ports": ports},
    }


def apply(lab: Lab, documents: Sequence[Document]) -> None:
    asyncio.run(_apply(lab, documents))


def wait(lab: Lab, documents: Sequence[Document]) -> None:
    """Until every pod of them is ready."""
    asyncio.run(_wait(lab, documents))


def start_dashboard(lab: Lab) -> None:
    """Where a browser finds it: on this machine's loopback address, at the lab's own port."""
    running = processes.find(lab.directory, DASHBOARD)
    if running is not None and running.running:
        return
    port = dashboard_port(lab)
    run = "from zonewise.cli.main import main; main()"
    options = ["--port", str(port), "--kubeconfig", str(lab.node_kubeconfig), "--log-format", "json"]
    started = processes.spawn(lab.directory, DASHBOARD, [sys.executable, "-c", run, "dashboard", *options])
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while not _answers(port):
        if not started.running or time.monotonic() > deadline:
            log = processes.log_path(lab.directory, DASHBOARD)
            raise ZonewiseError(f"the dashboard does not answer on port {port}: see {log}")
        time.sleep(0.1)


def dashboard_port(lab: Lab) -> int:
    return slots.port(lab.slot, _DASHBOARD_PORT)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


async def _apply(lab: Lab, documents: Sequence[Document]) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:

        async def apply_all() -> None:
            async for _ in apply_manifests.apply(client, documents, force=True):
                pass
            if lab.options.ceph:
                await csi_driver.configure(client, lab)

        await patiently(apply_all, _READY_WITHIN_SECONDS)


async def _wait(lab: Lab, documents: Sequence[Document]) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        await patiently(
            lambda: apply_manifests.until_ready(client, documents, _READY_WITHIN_SECONDS), _READY_WITHIN_SECONDS
        )
