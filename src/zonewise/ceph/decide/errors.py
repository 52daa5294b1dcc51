"""CSI errors: a gRPC status code and a message.

Any other exception that leaves an RPC is a bug in the driver and becomes INTERNAL, with a traceback in the log.
"""

import errno
from enum import StrEnum
from typing import Final

from zonewise.errors import ZonewiseError


class GrpcCode(StrEnum):
    """The gRPC status codes that CSI defines, by their names in `grpc.StatusCode`."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"


class CsiError(ZonewiseError):
    def __init__(self, code: GrpcCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES: Final = {
    errno.EPERM: GrpcCode.PERMISSION_DENIED,
    errno.EACCES: GrpcCode.PERMISSION_DENIED,
    errno.ENOENT: GrpcCode.NOT_FOUND,
    errno.EEXIST: GrpcCode.ALREADY_EXISTS,
    errno.EINVAL: GrpcCode.INVALID_ARGUMENT,
    errno.EDOM: GrpcCode.INVALID_ARGUMENT,
    errno.ERANGE: GrpcCode.OUT_OF_RANGE,
    errno.EFBIG: GrpcCode.OUT_OF_RANGE,
    errno.ENOSPC: GrpcCode.RESOURCE_EXHAUSTED,
    errno.EDQUOT: GrpcCode.RESOURCE_EXHAUSTED,
    errno.EBUSY: GrpcCode.FAILED_PRECONDITION,
    errno.ENOTEMPTY: GrpcCode.FAILED_PRECONDITION,
    errno.EROFS: GrpcCode.FAILED_PRECONDITION,
    errno.EOPNOTSUPP: GrpcCode.FAILED_PRECONDITION,
    errno.ETIMEDOUT: GrpcCode.UNAVAILABLE,
    errno.ESHUTDOWN: GrpcCode.UNAVAILABLE,
    errno.ENOTCONN: GrpcCode.UNAVAILABLE,
    errno.EIO: GrpcCode.UNAVAILABLE,
    errno.EAGAIN: GrpcCode.UNAVAILABLE,
    errno.ECANCELED: GrpcCode.ABORTED,
    errno.ESTALE: GrpcCode.ABORTED,  # another process removes the same image
}


def code_of(number: int | None) -> GrpcCode:
    """For an errno of librados, librbd or libcephfs, of either sign."""
    return _CODES.get(abs(number), GrpcCode.INTERNAL) if number else GrpcCode.INTERNAL


class CephCommandError(Exception):
    """A monitor or manager rejected a command: errno and message. Only for `from_ceph`."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.errno = number


def from_ceph(error: Exception, operation: str) -> CsiError:
    """An error of Ceph's bindings, which all carry `errno`, with the operation that failed."""
    number = getattr(error, "errno", None)
    code = code_of(number)
    why = {
        GrpcCode.UNAVAILABLE: "Ceph did not answer in time",
        GrpcCode.PERMISSION_DENIED: "the Ceph user lacks the capability for this",
    }.get(code, errno.errorcode.get(abs(number), str(number)) if number else type(error).__name__)
    origin = "" if isinstance(error, CephCommandError) else f"{type(error).__name__}: "
    return CsiError(code, f"{operation}: {why} ({origin}{_one_line(error)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
