"""A control plane of real programs in one directory: certificates, start, readiness, faults, stop.

Needs no root. The record written before the first process starts lets any later process attach to it, or clean up
after a crash. `zonewise lab` and the test fixtures both stand on this.
"""

import hashlib
import http.client
import json
import os
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from zonewise.errors import ZonewiseError
from zonewise.lab import paths, processes, records, slots
from zonewise.lab.build import binaries
from zonewise.lab.controlplane import etcd, programs
from zonewise.lab.controlplane.programs import USERS, ControlPlaneConfig, ControlPlaneFiles, Program
from zonewise.lab.decide import kwok_policy
from zonewise.objects.stored import Stored

READY_WITHIN_SECONDS = 120.0
STOP_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_ETCD_BYTES = 512 << 20
_RECORD = "control-plane.json"
# Clients first, so that none of them spends its last second on retries. What they talked to gets no time: its data is
# thrown away, and an API server would wait a minute for watchers that are gone without closing.
_STOP_ORDER = (
    ((Program.KWOK, Program.SCHEDULER, Program.CONTROLLER_MANAGER), STOP_GRACE_SECONDS),
    ((Program.APISERVER, Program.ETCD), 0.0),
)


class StartError(ZonewiseError):
    pass


class StatusError(ZonewiseError, http.client.HTTPException):
    """The server's answer was a status of 400 or more; the text has it."""


class ControlPlaneRecord(Stored, frozen=True):
    settings: ControlPlaneConfig
    layout: ControlPlaneFiles


class ControlPlane:
    def __init__(self, record: ControlPlaneRecord) -> None:
        self.settings = record.settings
        self.layout = record.layout

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        version: str = binaries.DEFAULT_VERSION,
        programs: Sequence[Program] = tuple(Program),
        controllers: str = "*",
        address: str = "127.0.0.1",
        flags: dict[Program, tuple[str, ...]] | None = None,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> "ControlPlane":
        """Start and wait until it is ready; on any failure nothing is left running."""
        settings = ControlPlaneConfig(
            version=version, programs=tuple(programs), controllers=controllers, address=address, flags=flags or {}
        )
        plane = cls.prepare(directory, settings)
        try:
            plane.launch(progress)
        except BaseException:
            plane.stop()
            raise
        return plane

    @classmethod
    def attach(cls, directory: Path) -> "ControlPlane":
        return cls(records.read(directory / _RECORD, ControlPlaneRecord))

    @classmethod
    def prepare(cls, directory: Path, settings: ControlPlaneConfig) -> "ControlPlane":
        built = binaries.find(settings.version)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        layout = ControlPlaneFiles(directory, data_directory(directory), built.directory, slots.claim(directory))
        settings = _with_front_proxy(settings, layout)
        records.write(directory / _RECORD, ControlPlaneRecord(settings, layout))
        return cls(ControlPlaneRecord(settings, layout))

    @property
    def directory(self) -> Path:
        return self.layout.directory

    @property
    def server(self) -> str:
        return f"https://{self.settings.address}:{self.layout.port(Program.APISERVER)}"

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig("admin")

    @property
    def ca_path(self) -> Path:
        return self.layout.pki / "ca.crt"

    @property
    def binaries(self) -> Path:
        return self.layout.binaries

    def write_credentials(self) -> None:
        from zonewise.lab.controlplane import credentials  # noqa: PLC0415 - takes a tenth of a second, in which etcd starts

        credentials.write(self.layout, self.settings.address, self.server)

    def add_user(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of one more user, signed by the lab's authority."""
        from zonewise.lab.controlplane import credentials  # noqa: PLC0415 - as above

        return credentials.add_user(self.layout, self.server, name, user, groups)

    # Faults: what tests and people do to a running control plane.

    def process(self, program: Program) -> processes.Process:
        process = processes.find(self.directory, program)
        if process is None:
            raise LookupError(f"{program} was never started in {self.directory}")
        return process

    def spawn(self, program: Program) -> processes.Process:
        """Start one program without waiting for it; see wait_ready."""
        return processes.spawn(
            self.directory, program, programs.command(program, self.settings, self.layout), cwd=self.layout.data
        )

    def kill(self, program: Program) -> None:
        self.process(program).signal(signal.SIGKILL)
        self.process(program).wait(READY_WITHIN_SECONDS)

    def pause(self, program: Program) -> None:
        self.process(program).signal(signal.SIGSTOP)

    def resume(self, program: Program) -> None:
        self.process(program).signal(signal.SIGCONT)

    def restart(self, program: Program, *, kill: bool = False) -> None:
        """End the program (cleanly, or with SIGKILL), start it again, and wait until the API is ready."""
        processes.stop([self.process(program)], 0 if kill else STOP_GRACE_SECONDS)
        self.spawn(program)
        self.wait_ready()

    def restart_apiserver(self) -> None:
        self.restart(Program.APISERVER, kill=True)

    def compact(self) -> int:
        """Drop etcd's history before the current revision, which is returned; the API server's cache still has its own."""
        return etcd.compact(self.layout.etcd_socket)

    def forget_history(self) -> int:
        """Make every resourceVersion before the returned one answer 410: compact etcd, and restart the cache."""
        revision = self.compact()
        self.restart_apiserver()
        return revision

    # Talking to the API server, as far as starting needs it.

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One JSON request as admin; a PATCH is a merge patch."""
        with closing(self._connect()) as connection:
            return _exchange(connection, method, path, body)

    def wait_ready(self, timeout_seconds: float = READY_WITHIN_SECONDS) -> None:
        self._await("/readyz", timeout_seconds)

    def wait_service_account(self, namespace: str = "default", timeout_seconds: float = READY_WITHIN_SECONDS) -> None:
        """Pods can't be created in a namespace before this exists."""
        self._await(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", timeout_seconds)

    def _connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.ca_path))
        context.load_cert_chain(self.layout.pki / "admin.crt", self.layout.pki / "admin.key")
        return http.client.HTTPSConnection(
            self.settings.address, self.layout.port(Program.APISERVER), timeout=10, context=context
        )

    def _controller_manager(self) -> http.client.HTTPSConnection:
        """Its certificate is self-signed, on loopback, and only its health is read."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        port = self.layout.port(Program.CONTROLLER_MANAGER)
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)

    def _await(self, path: str, timeout_seconds: float, server: http.client.HTTPSConnection | None = None) -> None:
        deadline = time.monotonic() + timeout_seconds
        with closing(server or self._connect()) as connection:
            while True:
                try:
                    _exchange(connection, "GET", path, None)
                except StatusError as error:
                    self._still_starting(path, error, deadline)
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    self._still_starting(path, error, deadline)
                else:
                    return
                time.sleep(_POLL_SECONDS)

    def _still_starting(self, path: str, error: Exception, deadline: float) -> None:
        for program in self.settings.programs:
            process = processes.find(self.directory, program)
            if process is not None and not process.running:
                log = processes.log_path(self.directory, program)
                raise StartError(f"{program} ended: {_last_line(log)} (all of it in {log})") from error
        if time.monotonic() > deadline:
            raise StartError(
                f"{self.server}{path} does not answer well: {error} (logs in {self.directory / processes.LOGS})"
            ) from error

    # Start and stop.

    def launch(self, progress: Callable[[str], None]) -> None:
        enabled = self.settings.programs
        shutil.rmtree(self.layout.data, ignore_errors=True)  # of a lab whose directory was removed by hand
        self.layout.data.mkdir(mode=0o700)
        self.spawn(Program.ETCD)
        self.write_credentials()
        self.spawn(Program.APISERVER)
        self.wait_ready()
        progress("API server ready")
        if Program.KWOK in enabled:
            for path, document in kwok_policy.documents(USERS[Program.KWOK].name).items():
                self.request("POST", path, document)
        for program in (Program.CONTROLLER_MANAGER, Program.SCHEDULER, Program.KWOK):
            if program in enabled:
                self.spawn(program)
        if self.settings.runs("serviceaccount-controller"):
            self.wait_service_account()
            progress("controllers ready")
        elif Program.CONTROLLER_MANAGER in enabled:
            self._await("/healthz", READY_WITHIN_SECONDS, self._controller_manager())
            progress("controllers started")

    def stop(self) -> None:
        """End every process and forget the data; logs and certificates stay in the directory."""
        for group, grace_seconds in _STOP_ORDER:
            running = (processes.find(self.directory, program) for program in group)
            processes.stop([process for process in running if process is not None], grace_seconds)
        shutil.rmtree(self.layout.data, ignore_errors=True)


def _with_front_proxy(settings: ControlPlaneConfig, layout: ControlPlaneFiles) -> ControlPlaneConfig:
    """On record: a control plane of an earlier release has no such certificates, and starts again without the flags."""
    flags = (*programs.front_proxy_flags(layout.pki), *settings.flags.get(Program.APISERVER, ()))
    return msgspec.structs.replace(settings, flags={**settings.flags, Program.APISERVER: flags})


def halt(directory: Path) -> None:
    """Stop all processes of this directory and delete its data; logs stay. Does nothing if there are none."""
    with suppress(FileNotFoundError):
        ControlPlane.attach(directory).stop()
    processes.close(directory, STOP_GRACE_SECONDS)
    shutil.rmtree(data_directory(directory), ignore_errors=True)


def remove(directory: Path) -> None:
    """Halt it and delete the directory. The slot goes last: while anything on disk names it, no other lab can take it."""
    halt(directory)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise ZonewiseError(
            f"could not remove {directory}: check owner and open files of what is left in it, then try again"
        )
    slots.release(directory)


def data_directory(directory: Path) -> Path:
    """Where etcd's data lives: in memory where there is room, under a name that follows from the directory's.

    Data that is there already stays where it is, however full the memory is by now.
    """
    name = f"zonewise-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"
    in_memory, on_disk = paths.MEMORY / name, directory / name
    return in_memory if in_memory.exists() or (not on_disk.exists() and _has_room(paths.MEMORY)) else on_disk


def _has_room(memory: Path) -> bool:
    """In a container it has 64 MB by default, and etcd ends if it cannot write."""
    return memory.is_dir() and shutil.disk_usage(memory).free >= _ETCD_BYTES


def _exchange(connection: http.client.HTTPSConnection, method: str, path: str, body: Any) -> Any:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    connection.request(method, path, body=None if body is None else json.dumps(body), headers={"Content-Type": kind})
    response = connection.getresponse()
    content = response.read()
    if response.status >= 400:
        raise StatusError(f"{method} {path}: {response.status} {content.decode(errors='replace')[:300]}")
    return json.loads(content) if response.headers.get_content_type() == "application/json" else content.decode()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:300] if lines else "it wrote nothing"
