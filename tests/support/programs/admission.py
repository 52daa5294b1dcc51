"""Admission server for a flood: `admission.py CERTIFICATE_PEM KEY` prints its port and serves until its input ends.

It runs as our commands do, on their event loop.
"""

import asyncio
import sys
from pathlib import Path

from zonewise.kube import process
from zonewise.kube.process import HealthListen
from zonewise.kube.server.admission import AdmissionServer, Webhook
from zonewise.kube.server.health import Health
from zonewise.kube.server.tls import load_pem, server_context
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.objects import Pod

PEM = Path(sys.argv[1]).read_bytes()
KEY = sys.argv[2]


async def allow(_review: Review[Pod]) -> AdmissionVerdict:
    return AdmissionVerdict.allow()


async def main(health: Health) -> None:
    context = server_context()
    load_pem(context, PEM)
    webhook = Webhook("at-once", Pod, allow, AdmissionVerdict.deny("failed", code=503))
    async with AdmissionServer([webhook], context, KEY.__eq__, host="127.0.0.1", port=0) as server:
        health.started()
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


sys.exit(process.run(main, listen=HealthListen("127.0.0.1")))
