"""Address plan of a lab: namespaces, addresses and routes from its name, slot and zones.

A lab owns one slot of 64, and with it an IPv4 /16 of the shared address space (100.64.0.0/10, RFC 6598) and an IPv6
/48 of unique local addresses (RFC 4193). Both are cut into equal parts: part 0 joins the zones to each other and to
the host, part 1 is the first zone, and so on. Within a zone the first subnet is the nodes' and each node has a subnet
for its pods, so a zone is one prefix and one route. `network` builds what is planned here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from typing import NamedTuple

from zonewise.errors import UsageError

SLOTS = 64
_IPV4_SPACE = IPv4Network("100.64.0.0/10")
_IPV6_SPACE = IPv6Network("fd7a:6f6e:6500::/40")
_FIRST_NODE = 10  # the nodes' subnet keeps its first addresses for the zone's gateway and later use
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


class Addresses(NamedTuple):
    """One place in the network, in both families."""

    v4: IPv4Address
    v6: IPv6Address


class Prefixes(NamedTuple):
    """One part of the network, in both families."""

    v4: IPv4Network
    v6: IPv6Network

    def address(self, index: int) -> Addresses:
        return Addresses(self.v4[index], self.v6[index])

    def subnet(self, index: int, v4_length: int, v6_length: int) -> Prefixes:
        v4 = next(islice(self.v4.subnets(new_prefix=v4_length), index, None))
        v6 = next(islice(self.v6.subnets(new_prefix=v6_length), index, None))
        return Prefixes(v4, v6)


@dataclass(frozen=True, slots=True)
class NodePlan:
    name: str
    zone: str
    rack: str
    namespace: str
    address: Addresses
    pods: Prefixes


@dataclass(frozen=True, slots=True)
class ZonePlan:
    """A zone's switch and router. Its uplink is a /31 and a /127: `far` is the end in the lab's router."""

    name: str
    namespace: str
    prefix: Prefixes
    near: Addresses
    far: Addresses
    gateway: Addresses
    node_subnet: Prefixes
    nodes: tuple[NodePlan, ...]


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """`host` is where the nodes find the API server: the machine's end of the link into the lab."""

    lab: str
    namespace: str
    link: str
    prefix: Prefixes
    host: Addresses
    router: Addresses
    zones: tuple[ZonePlan, ...]

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        return tuple(node for zone in self.zones for node in zone.nodes)

    def zone(self, name: str) -> ZonePlan:
        for zone in self.zones:
            if zone.name == name:
                return zone
        raise PlanError(f"lab {self.lab} has no zone {name!r}: its zones are {', '.join(z.name for z in self.zones)}")

    def node(self, name: str) -> NodePlan:
        for node in self.nodes:
            if node.name == name:
                return node
        raise PlanError(f"lab {self.lab} has no node {name!r}: see `zonewise lab status --name {self.lab}`")


class PlanError(UsageError):
    """What was asked for can't be laid out; the message says what to change."""


def zone_names(count: int) -> tuple[str, ...]:
    """zone-a, zone-b, ... as people name them."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    if not 1 <= count <= len(letters):
        raise PlanError(f"a lab has 1 to {len(letters)} zones, not {count}")
    return tuple(f"zone-{letter}" for letter in letters[:count])


def prefix_of(slot: int) -> Prefixes:
    """All addresses of the lab in this slot."""
    if not 0 <= slot < SLOTS:
        raise PlanError(f"a lab's slot is 0 to {SLOTS - 1}, not {slot}")
    return Prefixes(_IPV4_SPACE, _IPV6_SPACE).subnet(slot, 16, 48)


def host_addresses(slot: int) -> Addresses:
    """Where processes inside the lab reach this machine, and so the API server."""
    return prefix_of(slot).address(1)


def namespace_of(lab: str) -> str:
    """The lab's router; every other namespace of the lab starts with this name and a dot, which no lab's name holds."""
    return f"zw-{lab}"


def link_of(slot: int) -> str:
    """The host's end of the link into the lab."""
    return f"zw{slot}"


def plan(lab: str, slot: int, zones: Sequence[str], nodes_per_zone: int) -> AddressPlan:
    if not _NAME.fullmatch(lab):
        raise PlanError(f"a lab's name is up to 30 lower-case letters, digits and dashes, not {lab!r}")
    prefix = prefix_of(slot)
    part_length = 16 + len(zones).bit_length()
    _check_room(zones, nodes_per_zone, part_length)
    return AddressPlan(
        lab=lab,
        namespace=namespace_of(lab),
        link=link_of(slot),
        prefix=prefix,
        host=prefix.address(1),
        router=prefix.address(2),
        zones=tuple(_zone(lab, prefix, part_length, index, name, nodes_per_zone) for index, name in enumerate(zones)),
    )


def _check_room(zones: Sequence[str], nodes_per_zone: int, part_length: int) -> None:
    if len(set(zones)) != len(zones):
        raise PlanError(f"zones must have different names, not {', '.join(zones)}")
    most = (1 << max(0, 24 - part_length)) - 1
    if nodes_per_zone > most:
        raise PlanError(
            f"{len(zones)} zones leave room for {most} nodes in each, not {nodes_per_zone}: "
            "ask for fewer zones or nodes, or for kwok nodes"
        )


def _zone(lab: str, prefix: Prefixes, part_length: int, index: int, name: str, nodes_per_zone: int) -> ZonePlan:
    part = prefix.subnet(index + 1, part_length, 56)
    node_subnet = part.subnet(0, 24, 64)
    return ZonePlan(
        name=name,
        namespace=f"{namespace_of(lab)}.zone.{name}",
        prefix=part,
        far=prefix.address(4 + 2 * index),
        near=prefix.address(5 + 2 * index),
        gateway=node_subnet.address(1),
        node_subnet=node_subnet,
        nodes=tuple(_node(lab, part, node_subnet, name, number) for number in range(1, nodes_per_zone + 1)),
    )


def _node(lab: str, part: Prefixes, node_subnet: Prefixes, zone: str, number: int) -> NodePlan:
    name = f"{zone}-{number}"
    return NodePlan(
        name=name,
        zone=zone,
        rack=f"{zone}-r{(number - 1) % 2 + 1}",
        namespace=f"{namespace_of(lab)}.node.{name}",
        address=node_subnet.address(_FIRST_NODE + number - 1),
        pods=part.subnet(number, 24, 64),
    )
