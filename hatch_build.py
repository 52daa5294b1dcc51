"""Build hook: generates the protobuf messages of the CSI driver from its proto files."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SPEC = "zonewise/ceph/spec"


class Messages(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        generate(Path(self.root) / "src")


def generate(source: Path) -> None:
    import grpc_tools  # noqa: PLC0415 - needed by builds only
    from grpc_tools import protoc  # noqa: PLC0415

    known = Path(grpc_tools.__file__).parent / "_proto"
    protos = [str(path) for path in sorted((source / SPEC).glob("*.proto"))]
    if protoc.main(["protoc", f"-I{source}", f"-I{known}", f"--python_out={source}", f"--pyi_out={source}", *protos]):
        raise RuntimeError(f"protoc could not read {', '.join(protos)}")
