"""`zonewise dns` as a process: checks its options, opens its sockets and runs the DNS controller."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from zonewise.dns.controller import LONGEST_REST_SECONDS, DnsController, DnsControllerConfig
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.record_builder import ClusterDomain
from zonewise.dns.decide.upstreams import read_resolv_conf, read_upstream
from zonewise.dns.decide.zone import ZoneConfig
from zonewise.dns.server import priority, sockets
from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.sockets import ListenSockets
from zonewise.dns.wire.ipc import WorkerConfig
from zonewise.dns.wire.names import WrongNameError, packed, to_wire
from zonewise.errors import UsageError
from zonewise.kube.manager import Manager
from zonewise.kube.server.health import Health
from zonewise.kube.wire.access import ClusterAccess

RESOLV_CONF: Final = Path("/etc/resolv.conf")
_UNUSED_ADDRESSES: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, 3849): the kernel's route to them has this host's address; nothing is sent."""


@dataclass(frozen=True, slots=True)
class DnsOptions:
    """The command line."""

    domain: str
    listen: tuple[str, ...]
    port: int
    processes: int
    ttl: int
    pods: str
    name_endpoints_by_pod: bool
    locate: str
    upstreams: tuple[str, ...]
    forward: bool
    forwarders: tuple[str, ...]
    queries_per_second: int
    forwards_per_second: int
    cache_seconds: int
    stale_seconds: int
    log_queries: bool


def controller_config(options: DnsOptions) -> DnsControllerConfig:
    domain = domain_of(options.domain)
    settings = ZoneConfig(
        ClusterDomain(domain, options.ttl, options.name_endpoints_by_pod),
        PodNameRecords(options.pods),
        _own_addresses(options.listen),
        options.locate == "pods",
    )
    orders = WorkerConfig(
        domain,
        _upstreams(options),
        tuple(map(_checked_range, options.forwarders)),
        options.queries_per_second,
        options.forwards_per_second,
        options.cache_seconds,
        options.stale_seconds,
        options.log_queries,
    )
    return DnsControllerConfig(settings, orders)


def domain_of(text: str) -> bytes:
    try:
        return to_wire(text)
    except (WrongNameError, UnicodeError) as error:
        raise UsageError(f"--domain {text!r}: {error}; write one such as cluster.local") from None


def open_sockets(options: DnsOptions) -> ListenSockets:
    sockets.check_addresses(options.listen)
    return sockets.open_sockets(options.listen, options.port, options.processes or len(os.sched_getaffinity(0)))


async def live(
    access: ClusterAccess,
    config: DnsControllerConfig,
    opened: ListenSockets,
    health: Health,
    forked: ForkedProcess | None = None,
) -> None:
    """Until cancelled. `forked` is the first fork server; without it one is started."""
    try:
        manager = Manager(access, health, longest_rest_seconds=LONGEST_REST_SECONDS)
        controller = DnsController(manager.caches, config)
        manager.add("dns", lambda: controller.run(opened, health, forked))
        priority.use_batch_scheduling()
        await manager.run()
    finally:
        opened.close()


def _upstreams(options: DnsOptions) -> tuple[str, ...]:
    if not options.forward:
        return ()
    upstreams = options.upstreams or read_resolv_conf(RESOLV_CONF.read_text() if RESOLV_CONF.exists() else "")
    for text in upstreams:
        read_upstream(text)
    return upstreams


def _checked_range(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError as error:
        raise UsageError(f"--forwarder {text!r}: {error}; write a range such as 10.0.0.0/24") from None


def _own_addresses(listen: tuple[str, ...]) -> tuple[bytes, ...]:
    texts = listen or tuple(filter(None, map(_local_address, _UNUSED_ADDRESSES)))
    return tuple(address for text in texts if (address := packed(text)))


def _local_address(family: socket.AddressFamily) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_UNUSED_ADDRESSES[family], 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
