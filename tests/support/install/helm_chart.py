"""Comparison of the rendered Helm chart with the objects of `zonewise install`: `make test-chart`."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import yaml

from zonewise.install.components import InstallMode, ManifestValues, choose, documents
from zonewise.install.decide.document import identity

CHART = Path(__file__).parents[3] / "deploy/chart"
VALUES = ManifestValues(image="registry.example.com/z:1", namespace="here", replicas=3, api_server=("10.0.0.9", 443))
CHOICES = ("slices,disruption,proxy,dashboard", "slices,proxy-all,dns,csi", "dns-behind", "dns-node")


def rendered(helm: str, names: str, mode: InstallMode) -> str:
    host, port = VALUES.api_server
    values = (
        *(f"image={VALUES.image}", f"replicas={VALUES.replicas}", f"mode={mode}", f"components={{{names}}}"),
        *(f"apiServer.host={host}", f"apiServer.port={port}"),
    )
    command = [helm, "template", "it", str(CHART), "-n", VALUES.namespace, "--kube-version", "1.36"]
    command += [argument for value in values for argument in ("--set", value)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def main(helm: str) -> None:
    for names, mode in itertools.product(CHOICES, InstallMode):
        chart = {
            identity(document): document for document in yaml.safe_load_all(rendered(helm, names, mode)) if document
        }
        installed = {identity(document): document for document in documents(choose(names.split(",")), mode, VALUES)}
        same = chart == {key: document for key, document in installed.items() if key[0] != "Namespace"}
        print(f"{names}, {mode}: {len(chart)} objects, {'the same' if same else 'DIFFERENT from install'}")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
