"""`zonewise dns` as a program: what its options mean, and its life from the open port to the last answer."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from zonewise.dns.controller import DnsController, DnsControllerConfig
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.record_builder import ClusterDomain
from zonewise.dns.decide.upstreams import read_resolv_conf, read_upstream
from zonewise.dns.decide.zone import ZoneConfig
from zonewise.dns.server import sockets
from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.sockets import ListenSockets
from zonewise.dns.wire.ipc import WorkerConfig
from zonewise.dns.wire.names import WrongNameError, packed, to_wire
from zonewise.errors import UsageError
from zonewise.kube.client.client import Client
from zonewise.kube.server.health import Health
from zonewise.kube.wire.access import ClusterAccess

RESOLV_CONF = Path("/etc/resolv.conf")
_NOWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of nobody (RFC 5737, 3849): asking the kernel for the way there tells our own address; nothing is sent."""


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
    cache_seconds: int
    stale_seconds: int
    log_queries: bool


def options_of(asked: DnsOptions) -> DnsControllerConfig:
    domain = domain_of(asked.domain)
    settings = ZoneConfig(
        ClusterDomain(domain, asked.ttl, asked.name_endpoints_by_pod),
        PodNameRecords(asked.pods),
        _own_addresses(asked.listen),
        asked.locate == "pods",
    )
    orders = WorkerConfig(
        domain,
        _upstreams(asked),
        tuple(map(_checked_range, asked.forwarders)),
        asked.queries_per_second,
        asked.cache_seconds,
        asked.stale_seconds,
        asked.log_queries,
    )
    return DnsControllerConfig(settings, orders)


def domain_of(text: str) -> bytes:
    try:
        return to_wire(text)
    except (WrongNameError, UnicodeError) as error:
        raise UsageError(f"--domain {text!r}: {error}; write one such as cluster.local") from None


def open_doors(asked: DnsOptions) -> ListenSockets:
    sockets.check_addresses(asked.listen)
    return sockets.open_sockets(asked.listen, asked.port, asked.processes or len(os.sched_getaffinity(0)))


async def live(
    access: ClusterAccess,
    options: DnsControllerConfig,
    opened: ListenSockets,
    health: Health,
    born: ForkedProcess | None = None,
) -> None:
    """`born` is the nursery to begin with; without one it is started."""
    try:
        async with Client(access) as client:
            await DnsController(client, options).run(opened, health, born)
    finally:
        opened.close()


def _upstreams(asked: DnsOptions) -> tuple[str, ...]:
    if not asked.forward:
        return ()
    found = asked.upstreams or read_resolv_conf(RESOLV_CONF.read_text() if RESOLV_CONF.exists() else "")
    for each in found:
        read_upstream(each)
    return found


def _checked_range(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError as error:
        raise UsageError(f"--forwarder {text!r}: {error}; write a range such as 10.0.0.0/24") from None


def _own_addresses(listen: tuple[str, ...]) -> tuple[bytes, ...]:
    texts = listen or tuple(filter(None, map(_address_towards, _NOWHERE)))
    return tuple(found for text in texts if (found := packed(text)))


def _address_towards(family: socket.AddressFamily) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_NOWHERE[family], 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
