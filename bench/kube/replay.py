"""A minimal watch server over TLS that sends pod events at a fixed rate.

A real API server can't write 2,000 objects a second on two cores and leave one core to the measured client. Each event
carries the time at which it was sent; the client's handler subtracts it from its own clock.

    python -m bench.kube.replay DIRECTORY EVENTS_PER_SECOND SECONDS    (writes DIRECTORY/kubeconfig when ready)
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from pathlib import Path
from typing import Final

import trustme

from bench.kube.pods import pod

SENT: Final = "bench.zonewise.dev/sent"
OBJECTS: Final = 5_000
CLOSE_DELAY_SECONDS: Final = 2.0


async def main(directory: Path, rate: int, seconds: int) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    replay = Replay(rate, seconds)
    server = await asyncio.start_server(replay.serve, "127.0.0.1", 0, ssl=tls)
    _write_kubeconfig(directory, server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def _write_kubeconfig(directory: Path, port: int) -> None:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(directory / "ca.pem")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "replay",
        "clusters": [{"name": "replay", "cluster": cluster}],
        "users": [{"name": "replay", "user": {"token": "none"}}],
        "contexts": [{"name": "replay", "context": {"cluster": "replay", "user": "replay"}}],
    }
    draft = directory / "kubeconfig.draft"
    draft.write_text(json.dumps(config))
    draft.rename(directory / "kubeconfig")


class Replay:
    def __init__(self, rate: int, seconds: int) -> None:
        self.rate, self.seconds = rate, seconds
        rng = random.Random(11)
        self.events = [_split_at_stamp(pod(index, rng)) for index in range(OBJECTS)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _request_line(reader):
                if "watch=" in request:
                    await self._watch(writer, initial="sendInitialEvents" in request)
                    return
                _respond(writer, b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}')
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _watch(self, writer: asyncio.StreamWriter, *, initial: bool) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if initial:
            end = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
            _chunk(
                writer, json.dumps({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": end}}).encode() + b"\n"
            )
        start = time.monotonic()
        for number in range(self.rate * self.seconds):
            ahead = start + number / self.rate - time.monotonic()
            if ahead > 0:
                await writer.drain()
                await asyncio.sleep(ahead)
            kind = b"ADDED" if number < OBJECTS else b"MODIFIED"
            before, after = self.events[number % OBJECTS]
            _chunk(
                writer,
                b'{"type":"' + kind + b'","object":' + before + str(time.monotonic_ns()).encode() + after + b"}\n",
            )
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(CLOSE_DELAY_SECONDS)


def _split_at_stamp(content: dict) -> tuple[bytes, bytes]:
    content["metadata"]["annotations"][SENT] = "@stamp@"
    before, after = json.dumps(content).encode().split(b"@stamp@")
    return before, after


async def _request_line(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split(b"\r\n", 1)[0].decode()


def _respond(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
