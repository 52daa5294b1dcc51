"""What an RPC answers when it can't do what was asked: a gRPC code and a sentence, whoever is to blame.

Anything else that comes out of a call is a bug of ours and becomes INTERNAL, with a traceback in the log.
"""

import errno
from enum import StrEnum

from zonewise.errors import ZonewiseError


class Code(StrEnum):
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
    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES = {
    errno.EPERM: Code.PERMISSION_DENIED,
    errno.EACCES: Code.PERMISSION_DENIED,
    errno.ENOENT: Code.NOT_FOUND,
    errno.EEXIST: Code.ALREADY_EXISTS,
    errno.EINVAL: Code.INVALID_ARGUMENT,
    errno.EDOM: Code.INVALID_ARGUMENT,
    errno.ERANGE: Code.OUT_OF_RANGE,
    errno.EFBIG: Code.OUT_OF_RANGE,
    errno.ENOSPC: Code.RESOURCE_EXHAUSTED,
    errno.EDQUOT: Code.RESOURCE_EXHAUSTED,
    errno.EBUSY: Code.FAILED_PRECONDITION,
    errno.ENOTEMPTY: Code.FAILED_PRECONDITION,
    errno.EROFS: Code.FAILED_PRECONDITION,
    errno.EOPNOTSUPP: Code.FAILED_PRECONDITION,
    errno.ETIMEDOUT: Code.UNAVAILABLE,
    errno.ESHUTDOWN: Code.UNAVAILABLE,
    errno.ENOTCONN: Code.UNAVAILABLE,
    errno.EIO: Code.UNAVAILABLE,
    errno.EAGAIN: Code.UNAVAILABLE,
    errno.ECANCELED: Code.ABORTED,
    errno.ESTALE: Code.ABORTED,  # another process removes the same image
}


def code_of(number: int | None) -> Code:
    """For an error number of librados, librbd or libcephfs, whichever sign it comes with."""
    return _CODES.get(abs(number), Code.INTERNAL) if number else Code.INTERNAL


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
        Code.UNAVAILABLE: "Ceph did not answer in time",
        Code.PERMISSION_DENIED: "Ceph's user may not do that",
    }.get(code, errno.errorcode.get(abs(number), str(number)) if number else type(error).__name__)
    origin = "" if isinstance(error, Answered) else f"{type(error).__name__}: "
    return CsiError(code, f"{doing}: {why} ({origin}{_plain(error)})")


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
