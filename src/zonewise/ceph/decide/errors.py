"""What an RPC answers when it can't do what was asked: a gRPC code and a sentence, whoever is to blame.

Anything else that comes out of a call is a bug of ours and becomes INTERNAL, with a traceback in the log.
"""

import errno
from enum import StrEnum

from zonewise.errors import ZonewiseError


class GrpcCode(StrEnum):
    """gRPC status codes that CSI gives a meaning; the names are those of `grpc.StatusCode`."""

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


_CODES = {
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
    """For an error number of librados, librbd or libcephfs, whichever sign it comes with."""
    return _CODES.get(abs(number), GrpcCode.INTERNAL) if number else GrpcCode.INTERNAL


class Answered(Exception):  # noqa: N818 - for `from_ceph`
    """A daemon's answer: a number of the system's, and its words."""

    def __init__(self, number: int, said: str) -> None:
        super().__init__(said)
        self.errno = number


def from_ceph(error: Exception, doing: str) -> CsiError:
    """What Ceph's bindings raised, said with what we were doing. Their errors all carry `errno`."""
    number = getattr(error, "errno", None)
    code = code_of(number)
    why = {
        GrpcCode.UNAVAILABLE: "Ceph did not answer in time",
        GrpcCode.PERMISSION_DENIED: "Ceph's user may not do that",
    }.get(code, errno.errorcode.get(abs(number), str(number)) if number else type(error).__name__)
    origin = "" if isinstance(error, Answered) else f"{type(error).__name__}: "
    return CsiError(code, f"{doing}: {why} ({origin}{_plain(error)})")


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
