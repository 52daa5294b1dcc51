"""Watch of a server that vanishes without FIN or reset, as after a power loss.

The peer is a script in its own network namespace that answers a watch with one event; then its link goes down. The
watch's silence limit is far away, so only TCP keepalive can detect the loss.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from zonewise.kube.client.client import Client, EventType
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import Unreachable
from zonewise.objects import PODS

NAMESPACE = f"dead-peer-{os.getpid()}"
LINK = f"dp{os.getpid()}"
LOCAL, REMOTE = "169.254.77.1", "169.254.77.2"
SERVER = """
import socket, time
listener = socket.create_server(("0.0.0.0", 8080))
print("listening", flush=True)
connection, _ = listener.accept()
connection.recv(65536)
event = b'{"type":"ADDED","object":{"metadata":{"name":"p"}}}\\n'
connection.sendall(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n%x\\r\\n%s\\r\\n" % (len(event), event))
time.sleep(3600)
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def peer() -> Iterator[str]:
    ip("netns", "add", NAMESPACE)
    ip("link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE)
    try:
        ip("address", "add", f"{LOCAL}/30", "dev", LINK)
        ip("link", "set", LINK, "up")
        ip("-n", NAMESPACE, "address", "add", f"{REMOTE}/30", "dev", "eth0")
        ip("-n", NAMESPACE, "link", "set", "eth0", "up")
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SERVER]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listening\n"
            yield f"http://{REMOTE}:8080"
            server.kill()
    finally:
        ip("link", "delete", LINK)  # by name: the namespace exists until its socket has closed
        ip("netns", "delete", NAMESPACE)


async def test_watch_detects_a_vanished_server_by_keepalive(peer: str) -> None:
    async with (
        Client(ClusterAccess(server=peer)) as client,
        aclosing(client.watch(PODS, resource_version="1", silence_seconds=3600)) as events,
    ):
        assert (await anext(events)).type is EventType.ADDED
        ip("-n", NAMESPACE, "link", "set", "eth0", "down")
        with pytest.raises(Unreachable, match=r"^unreachable: watch of pods: "):
            await anext(events)
