"""A control plane of real programs in one directory: certificates, start, readiness, faults, stop.

Needs no root. The record written before the first process starts lets any later process attach to it, or clean up
after a crash. `zonewise lab` and the test fixtures both stand on this.
"""

import datetime as dt
import http.client
import json
import secrets
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from zonewise.lab import binaries, etcd, kubeconfig, pki, places, processes, programs, records, slots
from zonewise.lab.programs import Layout, Program, Settings

READY_WITHIN_SECONDS = 120.0
STOP_GRACE_SECONDS = 5.0
_RECORD = "control-plane.json"
# Clients first, so that none of them spends its last second on retries.
_STOP_ORDER = ((Program.KWOK, Program.SCHEDULER, Program.CONTROLLER_MANAGER), (Program.APISERVER,), (Program.ETCD,))


class StartError(Exception):
    pass


class Record(msgspec.Struct, frozen=True):
    settings: Settings
    layout: Layout


class ControlPlane:
    def __init__(self, record: Record) -> None:
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
        settings = Settings(
            version=version, programs=tuple(programs), controllers=controllers, address=address, flags=flags or {}
        )
        plane = cls.prepare(directory, settings)
        try:
            plane.write_credentials()
            plane.launch(progress)
        except BaseException:
            plane.stop()
            raise
        return plane

    @classmethod
    def attach(cls, directory: Path) -> "ControlPlane":
        return cls(records.read(directory / _RECORD, Record))

    @classmethod
    def prepare(cls, directory: Path, settings: Settings) -> "ControlPlane":
        built = binaries.find(settings.version)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        layout = Layout(directory, _data_directory(directory), built.directory, slots.claim(directory))
        records.write(directory / _RECORD, Record(settings, layout))
        return cls(Record(settings, layout))

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

    def credentials(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for one more user, signed by the lab's authority."""
        authority = pki.Authority.load(self.layout.pki)
        path = self.layout.kubeconfig(name)
        pair = authority.client(user, groups, dt.datetime.now(dt.UTC))
        kubeconfig.write(path, "lab", self.server, authority.pair.certificate_pem, user, pair)
        return path

    # Faults: what tests and people do to a running control plane.

    def process(self, program: Program) -> processes.Process:
        found = processes.find(self.directory, program)
        if found is None:
            raise LookupError(f"{program} was never started in {self.directory}")
        return found

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
        """Make every resourceVersion before the returned one answer 410: compact etcd, and start the cache anew."""
        revision = self.compact()
        self.restart_apiserver()
        return revision

    # Talking to the API server, as far as starting needs it.

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One JSON request as admin; raises http.client.HTTPException for a status of 400 or more."""
        connection = self._connect()
        try:
            return _exchange(connection, method, path, body)
        finally:
            connection.close()

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

    def _await(self, path: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        connection = self._connect()
        while True:
            try:
                _exchange(connection, "GET", path, None)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._still_starting(path, error, deadline)
                time.sleep(0.01)
            else:
                connection.close()
                return

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
        self.layout.data.mkdir(mode=0o700)
        for program in (Program.ETCD, Program.APISERVER):
            if program in enabled:
                self.spawn(program)
        self.wait_ready()
        progress("API server ready")
        for program in (Program.CONTROLLER_MANAGER, Program.SCHEDULER, Program.KWOK):
            if program in enabled:
                self.spawn(program)
        if self.settings.runs("serviceaccount-controller"):
            self.wait_service_account()
            progress("controllers ready")

    def stop(self) -> None:
        """End every process and forget the data; logs and certificates stay in the directory."""
        for group in _STOP_ORDER:
            running = (processes.find(self.directory, program) for program in group)
            processes.stop([process for process in running if process is not None], STOP_GRACE_SECONDS)
        processes.stop(processes.recorded(self.directory), STOP_GRACE_SECONDS)
        shutil.rmtree(self.layout.data, ignore_errors=True)
        slots.release(self.directory)

    def write_credentials(self) -> None:
        now = dt.datetime.now(dt.UTC)
        directory = self.layout.pki
        directory.mkdir(mode=0o700, exist_ok=True)
        authority = pki.Authority.create("zonewise-lab", now)
        authority.pair.write(directory, "ca")
        authority.server("kube-apiserver", self._server_names(), now).write(directory, "apiserver")
        pki.write_private(directory / "sa.key", pki.service_account_key())
        for name, user in programs.USERS.items():
            pair = authority.client(user.name, user.groups, now)
            kubeconfig.write(
                self.layout.kubeconfig(name), "lab", self.server, authority.pair.certificate_pem, user.name, pair
            )
            if name == "admin":
                pair.write(directory, "admin")

    def _server_names(self) -> list[str]:
        service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        return ["localhost", *service, "127.0.0.1", programs.KUBERNETES_SERVICE_ADDRESS, self.settings.address]


def remove(directory: Path) -> None:
    """Stop whatever a control plane in this directory still runs and delete the directory; fine when there is none."""
    with suppress(FileNotFoundError, msgspec.DecodeError):
        ControlPlane.attach(directory).stop()
    processes.stop(processes.recorded(directory), STOP_GRACE_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)


def _data_directory(directory: Path) -> Path:
    return (places.MEMORY if places.MEMORY.is_dir() else directory) / f"zonewise-{secrets.token_hex(6)}"


def _exchange(connection: http.client.HTTPSConnection, method: str, path: str, body: Any) -> Any:
    connection.request(
        method, path, body=None if body is None else json.dumps(body), headers={"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    content = response.read()
    if response.status >= 400:
        raise http.client.HTTPException(f"{method} {path}: {response.status} {content.decode(errors='replace')[:300]}")
    return json.loads(content) if response.headers.get_content_type() == "application/json" else content.decode()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:300] if lines else "it wrote nothing"
