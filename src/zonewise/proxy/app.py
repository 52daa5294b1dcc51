"""`zonewise proxy` as a process: the node proxy with its netlink socket, client and watches."""

from __future__ import annotations

from zonewise.kube.manager import Manager
from zonewise.kube.server.health import Health
from zonewise.kube.wire.access import ClusterAccess
from zonewise.proxy.informers import LONGEST_REST_SECONDS, PAGE_SIZE
from zonewise.proxy.nft_socket import NftSocket
from zonewise.proxy.server import Proxy, ProxyConfig


async def live(access: ClusterAccess, config: ProxyConfig, health: Health) -> None:
    """Until cancelled."""
    with NftSocket() as kernel:
        manager = Manager(access, health, page_size=PAGE_SIZE, longest_rest_seconds=LONGEST_REST_SECONDS)
        proxy = Proxy(manager.client, manager.caches, config, kernel)
        manager.add("proxy", lambda: proxy.run(health))
        await manager.run()
