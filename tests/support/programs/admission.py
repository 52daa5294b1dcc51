"""Admission server for a flood: `admission.py CERTIFICATE_PEM KEY` prints its port and serves until its input ends."""

import asyncio
import sys
from pathlib import Path

from zonewise.kube.server.admission import AdmissionServer, Webhook
from zonewise.kube.server.tls import load_pem, server_context
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.objects import Pod


async def allow(_review: Review[Pod]) -> AdmissionVerdict:
    return AdmissionVerdict.allow()


async def main(pem: bytes, key: str) -> None:
    context = server_context()
    load_pem(context, pem)
    webhook = Webhook("at-once", Pod, allow, AdmissionVerdict.deny("failed", code=503))
    async with AdmissionServer([webhook], context, key.__eq__, host="127.0.0.1", port=0) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(Path(sys.argv[1]).read_bytes(), sys.argv[2]))
