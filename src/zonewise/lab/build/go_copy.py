"""Copies of Go packages in which some functions are renamed, so that others of the same names can stand in for them.

Go's `-overlay` takes no files of the module cache, so the package is copied whole.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from zonewise.lab.build.binaries import BinariesError


def copy_package(package: Path, target: Path, replaced: Mapping[str, tuple[str, ...]]) -> None:
    """`replaced` names functions by file; `syncProxyRules` becomes `upstreamSyncProxyRules`."""
    for file in package.glob("*.go"):
        text = file.read_text()
        for function in replaced.get(file.name, ()):
            text, count = re.subn(
                rf"^(func (?:\(.*?\) )?){function}\(", rf"\1{_renamed(function)}(", text, flags=re.MULTILINE
            )
            if count != 1:
                raise BinariesError(
                    f"{file} has {count} functions {function}: adapt the recorder of {package.name} to it"
                )
        (target / file.name).write_text(text)


def _renamed(function: str) -> str:
    return f"upstream{function[0].upper()}{function[1:]}"
