"""go.mod for another Kubernetes version.

Kubernetes publishes its parts ("staging" modules) beside itself: v1.35.4 goes with v0.35.4 of each. Its own go.mod names
them, so the list follows the version. kwok is left out: each release of it compiles with few versions of those parts, and
as it only talks to the API server, the one of our default build serves all.
"""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from zonewise.lab.build.binaries import BinariesError

_REQUIREMENT = re.compile(r"^(?:require )?\s*(\S+) v\S+", re.MULTILINE)
_STAGING = re.compile(r"^\s*(?:replace\s+)?(k8s\.io/\S+) => \./staging/", re.MULTILINE)
_SHOWN_VERSIONS = 6
_UNPUBLISHED = "v0.0.0"  # what Kubernetes' own go.mod says where its replacement decides


def required(text: str) -> list[str]:
    """Every module that a go.mod requires."""
    blocks = re.findall(r"^require \((.*?)^\)|^require ([^(].*?)$", text, re.MULTILINE | re.DOTALL)
    return [requirement for block in blocks for requirement in _REQUIREMENT.findall(block[0] or block[1])]


def staging_modules(kubernetes_go_mod: str) -> list[str]:
    return sorted(set(_STAGING.findall(kubernetes_go_mod)))


def rewrite(text: str, version: str, staging: Sequence[str]) -> str:
    """Our go.mod, asking for another Kubernetes. What is needed indirectly follows from it: `go mod tidy` finds it."""
    part = staging_version(version)
    head = re.sub(r"^require \((?:\s+\S+ \S+ // indirect)+\s*\)\n", "", text, flags=re.MULTILINE)
    head = re.sub(r"^replace \(.*?^\)\n", "", head, flags=re.MULTILINE | re.DOTALL)
    head = re.sub(r"(k8s\.io/kubernetes) v\S+", rf"\1 {version}", head)
    head = re.sub(r"^\s+sigs\.k8s\.io/kwok v\S+\n", "", head, flags=re.MULTILINE)
    head = re.sub(
        rf"^(\s+)({'|'.join(map(re.escape, staging))}) v\S+", rf"\1\2 {_UNPUBLISHED}", head, flags=re.MULTILINE
    )
    replacements = "".join(f"\t{module} => {module} {part}\n" for module in staging)
    return f"{head.rstrip()}\n\nreplace (\n{replacements})\n"


def staging_version(version: str) -> str:
    return f"v0.{version.removeprefix('v1.')}"


def _download(version: str, go: Callable[[Sequence[str]], str]) -> str:
    """Module proxies list versions that they may not give, and give some that they don't list."""
    try:
        return go(["mod", "download", "-json", f"k8s.io/kubernetes@{version}"])
    except BinariesError as error:
        versions: list[str] = []
        with suppress(BinariesError):
            versions = go(["list", "-m", "-versions", "k8s.io/kubernetes"]).split()[1:]
        listed = f"; the newest that are listed: {', '.join(versions[-_SHOWN_VERSIONS:])}" if versions else ""
        raise BinariesError(f"Kubernetes {version} can't be fetched: {error}{listed}") from error


def select(module: Path, version: str, go: Callable[[Sequence[str]], str]) -> None:
    """Make the module in this directory build that Kubernetes."""
    fetched = json.loads(_download(version, go))
    staging = staging_modules(Path(fetched["GoMod"]).read_text())
    file = module / "go.mod"
    file.write_text(rewrite(file.read_text(), version, staging))
    (module / "kwok.go").write_text('package main\n\nfunc runKwok() { panic("kwok is in the default build") }\n')
    go(["mod", "tidy"])
