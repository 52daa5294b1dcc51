"""The lab's own kubectl, for what only it does: logs, exec, cp, port-forward."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from zonewise.lab.state import Lab

_WITHIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kubectl:
    lab: Lab
    namespace: str = "default"

    def argv(self, *arguments: str) -> list[str]:
        program = [str(self.lab.binaries / "kubectl"), f"--kubeconfig={self.lab.node_kubeconfig}"]
        return [*program, f"--namespace={self.namespace}", *arguments]

    def run(self, *arguments: str) -> str:
        done = self._run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def succeeds(self, *arguments: str) -> bool:
        return self._run(*arguments).returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments), capture_output=True, text=True, check=False, timeout=_WITHIN_SECONDS
        )

    def inside(self, pod: str, script: str, container: str = "main") -> str:
        return self.run("exec", pod, f"--container={container}", "--", "sh", "-c", script)

    @contextmanager
    def forwarded(self, pod: str, port: int) -> Iterator[int]:
        """A port of this machine that leads to the pod's."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local: int = probe.getsockname()[1]
        argv = self.argv("port-forward", f"pod/{pod}", f"{local}:{port}")
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "Forwarding from" in process.stdout.readline()
                yield local
            finally:
                process.terminate()


def fetched(port: int) -> str:
    """Answer of busybox' httpd to a GET of its index, without headers."""
    deadline = time.monotonic() + _WITHIN_SECONDS
    while True:
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        if answer or time.monotonic() > deadline:
            return answer.decode().rpartition("\r\n\r\n")[2]
