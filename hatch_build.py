"""Build hook: generates the protobuf messages of the Container Storage Interface from csi.proto."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = "zonewise/ceph/spec/csi.proto"


class Messages(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        generate(Path(self.root) / "src")


def generate(source: Path) -> None:
    import grpc_tools  # noqa: PLC0415 - needed by builds only
    from grpc_tools import protoc  # noqa: PLC0415

    known = Path(grpc_tools.__file__).parent / "_proto"
    failed = protoc.main(
        ["protoc", f"-I{source}", f"-I{known}", f"--python_out={source}", f"--pyi_out={source}", str(source / PROTO)]
    )
    if failed:
        raise RuntimeError(f"protoc could not read {source / PROTO}")
