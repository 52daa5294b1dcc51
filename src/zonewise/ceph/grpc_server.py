"""gRPC on a unix socket: services are plain objects with a method per RPC, in snake case, that take a request and return a response.

The door for every call: it is logged without its secrets, what is raised becomes a status, and no two calls get in each
other's way but through what they call. Ceph's libraries block and release the interpreter's lock, so a thread serves each call.
"""

import os
import re
import socket
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.errors import UsageError
from zonewise.log import get_logger

log = get_logger(__name__)

_LARGEST_MESSAGE = 4 << 20
_QUIET = frozenset(
    {
        "Probe",
        "GetPluginInfo",
        "GetPluginCapabilities",
        "NodeGetCapabilities",
        "ControllerGetCapabilities",
        "GetCapacity",
    }
)
"""Asked again and again, and they change nothing: the provisioner asks for the capacity of each class in each domain every minute."""
_WORDS = re.compile(r"(?<!^)(?=[A-Z])")


Headers = tuple[tuple[str, str], ...]


class GrpcServer:
    """`services`: by the name in the specification, such as Controller. RPCs that an object has no method for are answered
    with UNIMPLEMENTED. One with a method `headers` sends what that returns for the name of an RPC as initial metadata.
    """

    def __init__(self, endpoint: str, services: dict[str, object], threads: int = 64) -> None:
        self.path = socket_path(endpoint)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="csi")
        self._server = grpc.server(
            self._pool,
            options=[("grpc.max_receive_message_length", _LARGEST_MESSAGE), ("grpc.so_reuseport", 0)],
        )
        for name, service in services.items():
            self._server.add_generic_rpc_handlers((handlers(name, service),))

    def start(self) -> None:
        """Listens when this returns. Only the socket's owner may connect."""
        _make_way(self.path)
        before = os.umask(0o177)
        try:
            bound = self._server.add_insecure_port(f"unix:{self.path}")
        finally:
            os.umask(before)
        if not bound:
            raise UsageError(f"can't listen on {self.path}")
        self._server.start()
        log.info("serving", socket=str(self.path))

    def stop(self, grace_seconds: float) -> None:
        """Calls under way may finish within the grace period."""
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.path.unlink(missing_ok=True)


def socket_path(endpoint: str) -> Path:
    """`unix:///csi/csi.sock` or a plain absolute path."""
    path = Path(endpoint.removeprefix("unix://").removeprefix("unix:"))
    if not path.is_absolute():
        raise UsageError(f"--endpoint {endpoint!r} is no absolute path of a unix socket, such as unix:///csi/csi.sock")
    if len(os.fsencode(path)) > 107:
        raise UsageError(f"--endpoint {endpoint!r} is longer than the 107 bytes that a socket's path may have")
    return path


def _make_way(path: Path) -> None:
    """Remove the socket of a predecessor that was killed; one that is served by somebody is left alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise UsageError(f"{path} is there and no socket: remove it, or choose another --endpoint")
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        else:
            raise UsageError(f"{path} is served by another process: stop it, or choose another --endpoint")


def snake(name: str) -> str:
    return _WORDS.sub("_", name).lower()


def handlers(name: str, service: object) -> grpc.GenericRpcHandler:
    found: dict[str, Any] = {}
    for method in csi.DESCRIPTOR.services_by_name[name].methods:
        function = getattr(service, snake(method.name), None)
        if function is not None:
            request: type[Message] = getattr(csi, method.input_type.name)
            found[method.name] = grpc.unary_unary_rpc_method_handler(
                _guarded(method.name, function, getattr(service, "headers", None)),
                request_deserializer=request.FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
    return grpc.method_handlers_generic_handler(f"csi.v1.{name}", found)


def _guarded(
    name: str, function: Callable[[Any], Any], headers: Callable[[str], Headers] | None
) -> Callable[[Any, grpc.ServicerContext], Any]:
    level = log.debug if name in _QUIET else log.info

    def call(request: Any, context: grpc.ServicerContext) -> Any:
        began = time.monotonic()
        about = about_request(request)
        try:
            if headers is not None and (more := headers(name)):
                context.send_initial_metadata(more)
            response = function(request)
        except CsiError as error:
            log.warning(name, **about, code=str(error.code), error=str(error), seconds=_since(began))
            context.abort(grpc.StatusCode[error.code], str(error))
        except Exception as error:
            log.exception(name, **about, seconds=_since(began))
            message = f"a bug in the driver ({type(error).__name__}); its log has the details"
            context.abort(grpc.StatusCode[GrpcCode.INTERNAL], message)
        else:
            level(name, **about, seconds=_since(began))
            return response
        raise AssertionError("abort raises")

    return call


def about_request(request: Any) -> dict[str, str]:
    """What a call is about, for the log: names and ids, cut to a length; never secrets."""
    said = {}
    for field in ("name", "volume_id", "snapshot_id", "source_volume_id", "staging_target_path", "target_path"):
        value = getattr(request, field, "")
        if isinstance(value, str) and value:
            said[field] = value if len(value) <= 160 else f"{value[:160]}..."
    return said


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
