"""Leader-elected process that writes its identity into a ConfigMap repeatedly while it leads.

candidate.py KUBECONFIG NAMESPACE IDENTITY
"""

import sys
import time

from zonewise import log
from zonewise.kube import process
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector
from zonewise.kube.decide.election import Timing
from zonewise.kube.server.health import Health
from zonewise.kube.wire.errors import ApiError
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import CONFIG_MAPS

TIMING = Timing(lease_seconds=6, renew_deadline_seconds=3, retry_seconds=0.5)

path, namespace, identity = sys.argv[1:]


async def main(health: Health) -> None:
    async with Client(kubeconfig.load(path)) as client:
        leadership = LeaderElector(client, "x", namespace, identity=identity, timing=TIMING)
        guarded = client.guarded(leadership)

        async def lead() -> None:
            count = 0
            while True:
                count += 1
                time.sleep(0.05)  # noqa: ASYNC251 - a slow decision: if stopped here, only the guarded client protects
                body = MergePatch({"data": {"writer": identity, "count": str(count)}})
                try:
                    await guarded.patch(CONFIG_MAPS, "written", body, namespace)
                except ApiError as error:
                    log.get_logger("candidate").warning("write failed", error=str(error))

        health.started()
        await leadership.run(lead)


if __name__ == "__main__":
    log.configure("json", "debug")
    sys.exit(process.run(main, listen=process.HealthListen(host="127.0.0.1")))
