"""Process whose lifecycle is chosen by its first argument; reports its steps on stdout."""

import asyncio
import sys
import time

from zonewise import log
from zonewise.kube import process
from zonewise.kube.server.health import Health
from zonewise.kube.wire.errors import ConfigError


def report(line: str) -> None:
    print(line, flush=True)


async def clean(health: Health) -> None:
    health.started()
    try:
        try:
            await asyncio.Event().wait()
        finally:
            report("inner ends")
            await asyncio.sleep(0.01)
    finally:
        report("outer ends")


async def slow(health: Health) -> None:
    """Stops only after a line on stdin, so that a test can observe it while it stops."""
    health.started()
    try:
        await asyncio.Event().wait()
    finally:
        report("ending")
        await asyncio.to_thread(sys.stdin.readline)
        report("ended")


async def stubborn(health: Health) -> None:
    health.started()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            report("not yet")


async def blocking(health: Health) -> None:
    """Blocks the event loop."""
    health.started()
    try:
        await asyncio.Event().wait()
    finally:
        report("blocked")
        while True:
            time.sleep(0.01)  # noqa: ASYNC251 - the fault that is tested


async def returning(_health: Health) -> None:
    report("done")


async def broken(_health: Health) -> None:
    raise ValueError("a bug of ours")


async def misconfigured(_health: Health) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_refuse())


async def _refuse() -> None:
    raise ConfigError('kubeconfig /x: no context "y"; choose one of: z')


async def fails_while_ending(health: Health) -> None:
    health.started()
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("could not clean up")


if __name__ == "__main__":
    log.configure("json")
    main, unready_seconds, grace_seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    listen = process.HealthListen(host="127.0.0.1")
    sys.exit(process.run(globals()[main], listen=listen, unready_seconds=unready_seconds, grace_seconds=grace_seconds))
