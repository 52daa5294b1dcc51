"""Zonewise itself in a lab: the manifests of `zonewise install`, whose pods run as processes under their own accounts.

Only what a lab's nodes can't do differs: there is no image, so containers are given their command.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from zonewise.install import applying, components
from zonewise.install.components import Document, Mode
from zonewise.kube import kubeconfig
from zonewise.kube.client import Client
from zonewise.lab.nodes import Lab

_READY_WITHIN_SECONDS = 120.0
_COMMAND = ["zonewise"]


def documents() -> list[Document]:
    values = components.Values(image="none")
    return [as_process(document) for document in components.documents(components.DEFAULT, Mode.OVERLAY, values)]


def as_process(document: Document) -> Document:
    """The same object, with a command for every container that relies on its image for it."""
    made = copy.deepcopy(document)
    spec: dict[str, Any] = made.get("spec", {}).get("template", {}).get("spec", {})
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        container.setdefault("command", _COMMAND)
    return made


def apply(lab: Lab) -> None:
    asyncio.run(_apply(lab))


def wait(lab: Lab) -> None:
    """Until every pod of it is ready."""
    asyncio.run(_wait(lab))


async def _apply(lab: Lab) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        async for _ in applying.apply(client, documents(), force=True):
            pass


async def _wait(lab: Lab) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        await applying.until_ready(client, documents(), _READY_WITHIN_SECONDS)
