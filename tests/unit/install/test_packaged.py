"""What a wheel holds is enough to install from; and the chart and the links in deploy/ lead to the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

import zonewise
from zonewise.install.components import DEFAULT, InstallComponent, InstallMode, ManifestValues, file_names, text

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "src/zonewise/install/manifests"


def test_a_wheel_can_install(tmp_path: Path) -> None:
    """Built as for a release, twice to the same bytes, and imported from the archive alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    wheels = []
    for directory in (tmp_path / "first", tmp_path / "second"):
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
        subprocess.run(build, check=True, cwd=ROOT, env=environment, capture_output=True, timeout=250)
        wheels += directory.glob("*.whl")
    wheel, again = wheels
    assert wheel.read_bytes() == again.read_bytes()
    program = "import sys, zonewise; from zonewise.cli.main import main\nassert '.whl' in zonewise.__file__\nmain(sys.argv[1:])"
    printed = subprocess.run(
        [sys.executable, "-c", program, "install", "-o", "yaml"],
        check=True,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert printed == text(DEFAULT, InstallMode.OVERLAY, ManifestValues(image=f"zonewise:{zonewise.__version__}"))


def test_deploy_has_every_manifest() -> None:
    for manifest in MANIFESTS.glob("*.yaml"):
        assert (ROOT / "deploy" / manifest.name).resolve() == manifest
    assert (ROOT / "deploy/chart/manifests").resolve() == MANIFESTS
    named = {name for component in InstallComponent for mode in InstallMode for name in file_names(component, mode)}
    assert {manifest.name for manifest in MANIFESTS.glob("*.yaml")} == named


def test_the_charts_versions_and_defaults_are_the_packages() -> None:
    chart = yaml.safe_load((ROOT / "deploy/chart/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == zonewise.__version__
    assert values["image"] == f"zonewise:{zonewise.__version__}"
    assert values["components"] == [str(component) for component in DEFAULT]
    assert (values["mode"], values["replicas"]) == (InstallMode.OVERLAY, ManifestValues(image="").replicas)
    assert (values["apiServer"]["host"], values["apiServer"]["port"]) == ManifestValues(image="").api_server
