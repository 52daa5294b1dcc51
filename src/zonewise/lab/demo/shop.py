"""Server of the demo application: reports where it runs, and calls the Service behind it.

`python -m zonewise.lab.demo.shop` answers on PORT (8080, both IP versions):
    /            its name and location, as JSON
    /goods       a page of things to buy, some kilobytes
    /ask?n=100   asks BACKEND (host:port) that many times, a connection each, and counts the answers by zone;
                 with &by=name one of the pods that DNS names for BACKEND_NAME (name:port), looked up each time
    /healthz     200, or 503 after /fail, until /recover
With ASK_PER_SECOND it also asks BACKEND for goods at that rate. With DATA, a directory, each start of it adds a line to the
file `starts` there.
Standard library only: a pod of it is small and starts at once.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

UNANSWERED = "unanswered"
PORT = 8080
GOODS = {"goods": [f"thing {number} of a thousand" for number in range(200)]}
_ASK_TIMEOUT_SECONDS = 2.0


def identity() -> dict[str, str]:
    return {name.lower(): os.environ.get(name, "") for name in ("POD", "NODE", "ZONE")}


def ask(backend: Callable[[], str], count: int) -> dict[str, int]:
    """How many of so many questions each zone answered."""
    return Counter(_answering_zone(backend()) for _ in range(count))


def by_name(backend: str) -> str:
    """One of the name's addresses: a client of a headless Service chooses by itself. Empty if the name has none."""
    name, _, port = backend.rpartition(":")
    try:
        addresses = socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ""
    return "{}:{}".format(*random.choice(addresses)[4])  # noqa: S311 - no secret


def _answering_zone(backend: str, path: str = "/") -> str:
    if not backend:
        return UNANSWERED
    connection = http.client.HTTPConnection(backend, timeout=_ASK_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return str(json.load(connection.getresponse())["zone"])
    except (OSError, http.client.HTTPException, ValueError):
        return UNANSWERED
    finally:
        connection.close()


def ask_always(backend: str, per_second: float) -> None:
    """One question after the other, never faster than that."""
    while True:
        _answering_zone(backend, "/goods")
        time.sleep(1 / per_second)


def note_start(directory: str) -> None:
    """On disk before anything is served."""
    with Path(directory, "starts").open("a", encoding="utf-8") as file:
        print(*identity().values(), file=file)
        file.flush()
        os.fsync(file.fileno())


class ShopServer(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 128
    healthy = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class ShopHandler(BaseHTTPRequestHandler):
    server: ShopServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        match url.path:
            case "/":
                self._answer(200, identity())
            case "/goods":
                self._answer(200, identity() | GOODS)
            case "/ask":
                asked = parse_qs(url.query)
                named = asked.get("by") == ["name"]
                backend = (lambda: by_name(os.environ["BACKEND_NAME"])) if named else lambda: os.environ["BACKEND"]
                self._answer(200, identity() | {"answers": ask(backend, int(asked.get("n", ["1"])[0]))})
            case "/fail" | "/recover":
                self.server.healthy = url.path == "/recover"
                self._answer(200, {})
            case "/healthz":
                self._answer(200 if self.server.healthy else 503, {})
            case _:
                self._answer(404, {"error": f"no {url.path} here"})

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """One line per question would be all the log."""


def main() -> None:
    if directory := os.environ.get("DATA"):
        note_start(directory)
    server = ShopServer(("::", int(os.environ.get("PORT", PORT))), ShopHandler)
    # From another thread: shutdown waits for the loop, which runs in this one.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    if often := float(os.environ.get("ASK_PER_SECOND", "0")):
        threading.Thread(target=ask_always, args=(os.environ["BACKEND"], often), daemon=True).start()
    print(f"{identity()} serves on port {server.server_port}", flush=True)  # noqa: T201 - its log
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
