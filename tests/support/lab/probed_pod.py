"""A pod whose ports tests try from other pods: those that its program serves, and one that the tests open beside them."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import dns.exception
import dns.message
import dns.query

from support.lab.pods import Json, addresses, connects
from zonewise.lab.network import namespaces

UNNAMED: Final = frozenset({"unnamed-tcp", "unnamed-udp"})
_UNNAMED_PORT: Final = 7777
_WITHIN_SECONDS: Final = 1.0
_QUESTION: Final = dns.message.make_query("kubernetes.default.svc.cluster.local", "A")

Reached = dict[str, set[str]]
"""Names of ports, by address of the pod."""


@dataclass(frozen=True, slots=True)
class ProbedPod:
    addresses: list[str]
    tcp: Mapping[str, int]
    """Ports by name."""
    udp: Mapping[str, int]
    """Served by a DNS server."""
    datagrams: socket.socket
    """Of the unnamed port."""

    def reached_from(self, namespace: str) -> Reached:
        """Which ports a client in this network namespace reaches."""
        return {address: set(self._names(namespace, address)) for address in self.addresses}

    def _names(self, namespace: str, address: str) -> Iterator[str]:
        for name, port in self.tcp.items():
            if connects(namespace, address, port, _WITHIN_SECONDS):
                yield name
        for name, port in self.udp.items():
            if namespaces.inside(namespace, lambda port=port: _is_answered(address, port)):
                yield name
        if namespaces.inside(namespace, lambda: self._arrives(address)):
            yield "unnamed-udp"

    def _arrives(self, address: str) -> bool:
        """Whether a datagram does, before the sender learns that it was refused. Earlier ones may come late."""
        sent = os.urandom(8)
        with socket.socket(_family(address), socket.SOCK_DGRAM) as sender:
            sender.connect((address, _UNNAMED_PORT))
            sender.send(sent)
            while self.datagrams in select.select([self.datagrams, sender], [], [], _WITHIN_SECONDS)[0]:
                if self.datagrams.recv(64) == sent:
                    return True
        return False


@contextmanager
def probed(pod: Json, namespace: str, *, serves: bool = True) -> Iterator[ProbedPod]:
    """The pod with this network namespace. What does not serve its own ports has them served here."""
    listed = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    tcp, udp = (
        {port["name"]: port["containerPort"] for port in listed if port["protocol"] == protocol}
        for protocol in ("TCP", "UDP")
    )
    opened = [_UNNAMED_PORT, *(() if serves else tcp.values())]
    listeners = [namespaces.inside(namespace, lambda port=port: _listen(port)) for port in opened]
    datagrams = namespaces.inside(namespace, _receive)
    try:
        yield ProbedPod(addresses(pod), {**tcp, "unnamed-tcp": _UNNAMED_PORT}, udp, datagrams)
    finally:
        for opened_socket in (*listeners, datagrams):
            opened_socket.close()


def _listen(port: int) -> socket.socket:
    return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)


def _receive() -> socket.socket:
    receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    receiver.bind(("::", _UNNAMED_PORT))
    return receiver


def _is_answered(address: str, port: int) -> bool:
    try:
        return bool(dns.query.udp(_QUESTION, address, timeout=_WITHIN_SECONDS, port=port).answer)
    except (OSError, dns.exception.DNSException):
        return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
