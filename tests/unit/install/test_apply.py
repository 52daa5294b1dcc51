"""Install on API servers that lack what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.errors import ZonewiseError
from zonewise.install.apply import apply
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues, documents


class OldServer:
    """No lab has a version this old."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.calls: list[str] = []

    async def version(self) -> str:
        return self._version

    async def get(self, resource: Any, name: str, _namespace: str) -> Any:
        self.calls.append(f"{resource.kind} {name}")
        raise RuntimeError


@pytest.mark.parametrize("version", ["v1.29.10-gke.100", "1.24"])
async def test_nothing_is_made_on_a_server_without_admission_policies(version: str) -> None:
    server: Any = OldServer(version)
    made = documents([InstallComponent.SLICES], InstallMode.OVERLAY, ManifestValues(image="zonewise"))
    with pytest.raises(ZonewiseError, match=r"has no ValidatingAdmissionPolicy.*upgrade to 1\.30"):
        _ = [outcome async for outcome in apply(server, made)]
    assert not server.calls


async def test_components_without_policies_need_no_new_server() -> None:
    server: Any = OldServer("v1.29.0")
    made = documents([InstallComponent.PROXY], InstallMode.OVERLAY, ManifestValues(image="zonewise"))
    with pytest.raises(RuntimeError):
        _ = [outcome async for outcome in apply(server, made)]
    assert server.calls
