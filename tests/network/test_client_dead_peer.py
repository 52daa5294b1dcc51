"""A server that vanishes without a word, as a node does that loses power: the watch must not wait for ever.

The peer is a script in a network namespace of its own that answers a watch with one event; then its link goes down.
No FIN and no reset can reach us, and the watch's own limit on silence is far away: only TCP keepalive can tell.
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
OURS, THEIRS = "169.254.77.1", "169.254.77.2"
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
        ip("address", "add", f"{OURS}/30", "dev", LINK)
        ip("link", "set", LINK, "up")
        ip("-n", NAMESPACE, "address", "add", f"{THEIRS}/30", "dev", "eth0")
        ip("-n", NAMESPACE, "link", "set", "eth0", "up")
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SERVER]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listening\n"
            yield f"http://{THEIRS}:8080"
            server.kill()
    finally:
        ip("link", "delete", LINK)  # by name: the namespace lives on as long as its socket tries to say goodbye
        ip("netns", "delete", NAMESPACE)


async def test_a_vanished_server_is_noticed(peer: str) -> None:
    async with (
        Client(ClusterAccess(server=peer)) as client,
        aclosing(client.watch(PODS, resource_version="1", silence_seconds=3600)) as events,
    ):
        assert (await anext(events)).type is EventType.ADDED
        ip("-n", NAMESPACE, "link", "set", "eth0", "down")
        with pytest.raises(Unreachable, match=r"^unreachable: watch of pods: "):
            await anext(events)
