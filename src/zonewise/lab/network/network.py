"""Network of a lab, built from its address plan: `ip` commands, one process per namespace.

    host --- router (zw-LAB) --- zone (zw-LAB.zone.Z) --- node (zw-LAB.node.N) --- pods

The host gets one veth and two routes, nothing else of it changes. The router joins host and zones, and is where paths
between zones are cut and shaped (`shaping`). A zone's namespace is its switch, a bridge, and its gateway. A node is the
gateway of its pods, which CNI attaches to it by routed links: what a pod sends always passes the node's own rules, as
kube-proxy needs it.
"""

from __future__ import annotations

import socket

from zonewise.lab.decide.addresses import Addresses, AddressPlan, NodePlan, ZonePlan
from zonewise.lab.network import namespaces

# Forwarding is what routers do. Reverse-path filters would drop what a delay line hands back. Detecting duplicates
# keeps an IPv6 address unusable for a second, and no address here is used elsewhere.
_SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv4.conf.all.send_redirects": 0,
    "net.ipv4.conf.default.send_redirects": 0,
    "net.ipv6.conf.all.disable_ipv6": 0,
    "net.ipv6.conf.default.disable_ipv6": 0,
    "net.ipv6.conf.default.accept_dad": 0,
    "net.ipv6.conf.all.forwarding": 1,
}


def build(plan: AddressPlan) -> None:
    """Make all of it; what an earlier lab of this name left is removed first."""
    remove(plan.lab, plan.link)
    all_namespaces = [
        plan.namespace,
        *(zone.namespace for zone in plan.zones),
        *(node.namespace for node in plan.nodes),
    ]
    namespaces.ip([f"netns add {namespace}" for namespace in all_namespaces])
    for namespace in all_namespaces:
        namespaces.sysctl(namespace, _SYSCTLS)
    namespaces.ip(host_lines(plan))
    namespaces.ip(router_lines(plan), plan.namespace)
    for zone in plan.zones:
        namespaces.ip(zone_lines(zone), zone.namespace)
        for node in zone.nodes:
            namespaces.ip(node_lines(zone, node), node.namespace)


def remove(lab: str, link: str) -> None:
    """The link goes first: the kernel frees a namespace's interfaces later, at its leisure."""
    if link in {name for _, name in socket.if_nameindex()}:
        namespaces.ip([f"link del {link}"])
    namespaces.remove(namespaces.of_lab(lab))


def router_port(plan: AddressPlan, zone: ZonePlan) -> str:
    return f"zone{plan.zones.index(zone)}"


def host_lines(plan: AddressPlan) -> list[str]:
    """All links of the lab, each end made where it belongs, and the host's way in."""
    return [
        f"link add {plan.link} type veth peer name host netns {plan.namespace}",
        *(
            f"link add {router_port(plan, zone)} netns {plan.namespace} "
            f"type veth peer name uplink netns {zone.namespace}"
            for zone in plan.zones
        ),
        *(
            f"link add eth0 netns {node.namespace} type veth peer name node{number} netns {zone.namespace}"
            for zone in plan.zones
            for number, node in enumerate(zone.nodes, start=1)
        ),
        *_address(plan.link, plan.host, 30, 126),
        f"link set {plan.link} up",
        f"route add {plan.prefix.v4} via {plan.router.v4} dev {plan.link} src {plan.host.v4}",
        f"route add {plan.prefix.v6} via {plan.router.v6} dev {plan.link} src {plan.host.v6}",
    ]


def router_lines(plan: AddressPlan) -> list[str]:
    lines = [
        "link set lo up",
        *_address("host", plan.router, 30, 126),
        "link set host up",
        *_default(plan.host, "host"),
    ]
    for zone in plan.zones:
        port = router_port(plan, zone)
        lines += [*_address(port, zone.far, 31, 127), f"link set {port} up"]
        lines += [
            f"route add {zone.prefix.v4} via {zone.near.v4} dev {port}",
            f"route add {zone.prefix.v6} via {zone.near.v6} dev {port}",
        ]
    return lines


def zone_lines(zone: ZonePlan) -> list[str]:
    lines = [
        "link set lo up",
        *_address("uplink", zone.near, 31, 127),
        "link set uplink up",
        *_default(zone.far, "uplink"),
        "link add nodes type bridge",
        *_address("nodes", zone.gateway, zone.node_subnet.v4.prefixlen, zone.node_subnet.v6.prefixlen),
        "link set nodes up",
    ]
    for number, node in enumerate(zone.nodes, start=1):
        lines += [
            f"link set node{number} master nodes",
            f"link set node{number} up",
            f"route add {node.pods.v4} via {node.address.v4} dev nodes",
            f"route add {node.pods.v6} via {node.address.v6} dev nodes",
        ]
    # Unused addresses of the zone must not loop over the default route.
    return [*lines, f"route add unreachable {zone.prefix.v4}", f"route add unreachable {zone.prefix.v6}"]


def node_lines(zone: ZonePlan, node: NodePlan) -> list[str]:
    return [
        "link set lo up",
        *_address("eth0", node.address, zone.node_subnet.v4.prefixlen, zone.node_subnet.v6.prefixlen),
        "link set eth0 up",
        *_default(zone.gateway, "eth0"),
        f"route add unreachable {node.pods.v4}",
        f"route add unreachable {node.pods.v6}",
    ]


def _address(link: str, address: Addresses, v4_length: int, v6_length: int) -> list[str]:
    return [
        f"addr add {address.v4}/{v4_length} dev {link}",
        f"addr add {address.v6}/{v6_length} dev {link} nodad",
    ]


def _default(gateway: Addresses, link: str) -> list[str]:
    return [f"route add default via {gateway.v4} dev {link}", f"route add default via {gateway.v6} dev {link}"]
