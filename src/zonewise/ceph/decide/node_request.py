"""Checks of the fields that every call of the CSI node service carries. Pure."""

from __future__ import annotations

from typing import Any, Final

from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode

_MAX_TEXT: Final = 4096  # PATH_MAX


def parse_volume(volume: str) -> ids.VolumeId:
    volume_id = ids.parse_volume_id(volume)
    if volume_id is None:
        raise CsiError(GrpcCode.NOT_FOUND, f"volume {volume} does not exist")
    return volume_id


def require_fields(request: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(request, field)
        if not isinstance(value, str):
            if not request.HasField(field):
                raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} is missing")
            continue
        if not value:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} is missing")
        if "\0" in value or len(value) > _MAX_TEXT:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} contains a NUL, or more than {_MAX_TEXT} characters")
        if field.endswith("target_path") and (not value.startswith("/") or ".." in value.split("/")):
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} must be an absolute path without '..'")
