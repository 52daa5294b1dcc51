"""gRPC server on a unix socket. Services are plain objects with a method per RPC in snake case, from request to response.

Every call is logged without its secrets, and exceptions become gRPC statuses. Ceph's libraries block and release the
GIL, so each call runs in a thread.
"""

import os
import re
import socket
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.errors import UsageError
from zonewise.log import get_logger

_log = get_logger(__name__)

_MAX_MESSAGE_BYTES: Final = 4 << 20
_QUIET: Final = frozenset(
    {
        "Probe",
        "GetPluginInfo",
        "GetPluginCapabilities",
        "NodeGetCapabilities",
        "ControllerGetCapabilities",
        "GetCapacity",
    }
)
"""Frequent calls without effect: csi-provisioner reads the capacity of each class in each domain every minute."""
_WORDS: Final = re.compile(r"(?<!^)(?=[A-Z])")


Headers = tuple[tuple[str, str], ...]


class SocketInUseError(UsageError):
    """Another process serves the socket."""


class GrpcServer:
    """`services`: by their name in the specification, such as Controller. RPCs without a method return UNIMPLEMENTED.

    `spec`: the messages generated from the specification's proto file. A service's optional method `headers` returns the
    initial metadata for the name of an RPC.
    """

    def __init__(
        self, endpoint: str, services: dict[str, object], *, spec: ModuleType = csi, threads: int = 64
    ) -> None:
        self.path = socket_path(endpoint)
        self._started = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="csi")
        self._server = grpc.server(
            self._pool,
            options=[("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)],
        )
        for name, service in services.items():
            self._server.add_generic_rpc_handlers((rpc_handlers(spec, name, service),))

    @property
    def serves(self) -> bool:
        return self._started

    def start(self) -> None:
        """Listens on return. Only the socket's owner may connect."""
        _remove_stale_socket(self.path)
        old_mask = os.umask(0o177)
        try:
            bound = self._server.add_insecure_port(f"unix:{self.path}")
        finally:
            os.umask(old_mask)
        if not bound:
            raise UsageError(f"can't listen on {self.path}: check that its directory is writable")
        self._server.start()
        self._started = True
        _log.info("serving", socket=str(self.path))

    def stop(self, grace_seconds: float) -> None:
        """Calls in progress may finish within the grace period."""
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.path.unlink(missing_ok=True)


def socket_path(endpoint: str) -> Path:
    """`unix:///csi/csi.sock` or a plain absolute path."""
    path = Path(endpoint.removeprefix("unix://").removeprefix("unix:"))
    if not path.is_absolute():
        raise UsageError(
            f"--endpoint {endpoint!r} is not an absolute path of a unix socket: use one such as unix:///csi/csi.sock"
        )
    if len(os.fsencode(path)) > 107:
        raise UsageError(f"--endpoint {endpoint!r} is too long: a socket path has at most 107 bytes")
    return path


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a killed process. Raises UsageError if another process serves it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise UsageError(f"{path} exists and is not a socket: remove it, or choose another --endpoint")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        else:
            raise SocketInUseError(f"{path} is served by another process: stop it, or choose another --endpoint")


def snake_case(name: str) -> str:
    return _WORDS.sub("_", name).lower()


def rpc_handlers(spec: ModuleType, name: str, service: object) -> grpc.GenericRpcHandler:
    methods: dict[str, Any] = {}
    for method in spec.DESCRIPTOR.services_by_name[name].methods:
        function = getattr(service, snake_case(method.name), None)
        if function is not None:
            request: type[Message] = getattr(spec, method.input_type.name)
            methods[method.name] = grpc.unary_unary_rpc_method_handler(
                _guarded(method.name, function, getattr(service, "headers", None)),
                request_deserializer=request.FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
    return grpc.method_handlers_generic_handler(f"{spec.DESCRIPTOR.package}.{name}", methods)


def _guarded(
    name: str, function: Callable[[Any], Any], headers: Callable[[str], Headers] | None
) -> Callable[[Any, grpc.ServicerContext], Any]:
    log_call = _log.debug if name in _QUIET else _log.info

    def call(request: Any, context: grpc.ServicerContext) -> Any:
        began = time.monotonic()
        fields = log_fields(request)
        try:
            if headers is not None and (metadata := headers(name)):
                context.send_initial_metadata(metadata)
            response = function(request)
        except CsiError as error:
            _log.warning(name, **fields, code=str(error.code), error=str(error), seconds=_since(began))
            context.abort(grpc.StatusCode[error.code], str(error))
        except Exception as error:  # noqa: BLE001 - a bug: logged with its traceback, returned as INTERNAL
            _log.exception(name, **fields, seconds=_since(began))
            message = f"internal error in the driver ({type(error).__name__}): see its log"
            context.abort(grpc.StatusCode[GrpcCode.INTERNAL], message)
        else:
            log_call(name, **fields, seconds=_since(began))
            return response
        raise AssertionError("abort raises")

    return call


def log_fields(request: Any) -> dict[str, str]:
    """Names and ids of a request, shortened; never secrets."""
    fields = {}
    for field in ("name", "volume_id", "snapshot_id", "source_volume_id", "staging_target_path", "target_path"):
        value = getattr(request, field, "")
        if isinstance(value, str) and value:
            fields[field] = value if len(value) <= 160 else f"{value[:160]}..."
    return fields


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
