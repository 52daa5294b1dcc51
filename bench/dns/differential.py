"""Differential test against CoreDNS: every name of random cluster states is queried from both servers.

Each state is a namespace with a few Services of all kinds, on one real API server that both watch. Differences in
response code, answers or glue are printed, and the exit code is 1. `python -m bench.dns.differential --states 500`
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import dns.rcode
import dns.rdatatype

from bench.dns.coredns import CoreDns
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane import controlplane
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, SERVICES

Json = dict[str, Any]
DOMAIN = "cluster.local."
KINDS = ("A", "AAAA", "SRV", "TXT", "CNAME", "MX")
ZONES = ("zone-a", "Zone.B", "zone-c")
PORTS = (("http", "TCP", 80), ("dns", "UDP", 53), ("dns-tcp", "TCP", 53), ("", "TCP", 9))
PATIENCE_SECONDS = 60.0


@dataclass
class State:
    """One namespace: its Services with their slices."""

    namespace: str
    services: list[Json]
    slices: list[Json]


def random_states(count: int, seed: int) -> list[State]:
    """The last one is a sentinel: when a server knows it, it knows all."""
    chance = random.Random(seed)
    return [*(random_state(number, chance) for number in range(count)), sentinel()]


def random_state(number: int, chance: random.Random) -> State:
    namespace = f"state-{number}"
    state = State(namespace, [], [])
    for index in range(chance.randint(1, 4)):
        name = f"s{index}"
        kind = chance.choice(["headless", "headless", "cluster", "external"])
        ports = [
            {"name": port or "x", "protocol": protocol, "port": port_number}
            for port, protocol, port_number in chance.sample(PORTS, chance.randint(0 if kind == "headless" else 1, 3))
        ]
        if kind == "external":
            target = chance.choice([f"s{chance.randint(0, 3)}.{namespace}.svc.cluster.local", "192.0.2.9"])
            state.services.append(_service(name, type="ExternalName", externalName=target))
            continue
        families = chance.choice([["IPv4"], ["IPv6"], ["IPv4", "IPv6"]]) if kind == "headless" else ["IPv4"]
        if kind == "headless" and chance.random() < 0.1:
            state.services.append(_service(name, ports=ports, clusterIP="None"))
            state.slices.append(_named_slice(name, namespace, ports, chance))
            continue
        spec: Json = {"clusterIP": "None"} if kind == "headless" else {}
        state.services.append(_service(name, ports=ports, **spec))
        state.slices += [
            _slice(name, family, n, ports, chance) for family in families for n in range(chance.randint(0, 2))
        ]
    return state


def _service(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": spec}


def _slice(owner: str, family: str, number: int, ports: list[Json], chance: random.Random) -> Json:
    listed = ports if chance.random() < 0.8 else ports[:1]
    return {
        "metadata": {
            "name": f"{owner}-{family.lower()}-{number}",
            "labels": {"kubernetes.io/service-name": owner, "endpointslice.kubernetes.io/managed-by": "differential"},
        },
        "addressType": family,
        "ports": [{**port, "port": 1000 + port["port"]} for port in listed],
        "endpoints": [_endpoint(family, chance) for _ in range(chance.randint(0, 4))],
    }


def _named_slice(owner: str, namespace: str, ports: list[Json], chance: random.Random) -> Json:
    """One FQDN endpoint. For several, CoreDNS returns several CNAMEs, which resolvers reject (RFC 2181, 10.1)."""
    body = _slice(owner, "IPv4", 0, ports, chance)
    target = f"s{chance.randint(0, 3)}.{namespace}.svc.cluster.local"
    endpoint = {"addresses": [target], "conditions": {"ready": True}, "zone": chance.choice(ZONES)}
    return {**body, "addressType": "FQDN", "endpoints": [endpoint]}


def _endpoint(family: str, chance: random.Random) -> Json:
    last = chance.randint(0, 5000)
    address = (
        f"10.{chance.randint(0, 3)}.{last // 250}.{last % 250}"
        if family == "IPv4"
        else str(ip_address((0xFD << 120) + last))
    )
    endpoint: Json = {"addresses": [address], "conditions": {}}
    if (ready := chance.choice([True, True, False, None])) is not None:
        endpoint["conditions"]["ready"] = ready
    if chance.random() < 0.4:
        endpoint["hostname"] = chance.choice(["a", "b", "web-0"])
    if chance.random() < 0.7:
        endpoint["zone"] = chance.choice(ZONES)
    return endpoint


def names_of(state: State) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every name that the state may have, and some that it does not have."""
    yield f"{state.namespace}.svc", KINDS
    yield f"nothing.{state.namespace}.svc", ("A",)
    for service in state.services:
        name = service["metadata"]["name"]
        base = f"{name}.{state.namespace}.svc"
        yield base, KINDS
        yield f"nothing.{base}", ("A", "SRV")
        for port, protocol, _ in (*PORTS[:3], ("x", "TCP", 0)):
            yield f"_{port}._{protocol.lower()}.{base}", ("A", "AAAA", "SRV")
        for zone in (*ZONES, "nowhere"):
            for directive in ("pin", "prefer"):
                yield f"{zone}.{directive}._zone.{base}", KINDS
        for slice_ in state.slices:
            if slice_["metadata"]["labels"]["kubernetes.io/service-name"] == name:
                for endpoint in slice_["endpoints"]:
                    dashed = endpoint["addresses"][0].replace(".", "-").replace(":", "-")
                    yield f"{dashed}.{base}", ("A", "AAAA", "SRV")
                    if host := endpoint.get("hostname"):
                        yield f"{host}.{base}", ("A", "AAAA", "SRV")


def reverse_names_of(state: State) -> Iterator[str]:
    for slice_ in state.slices:
        for endpoint in slice_["endpoints"]:
            if slice_["addressType"] != "FQDN":
                yield f"{ip_address(endpoint['addresses'][0]).reverse_pointer}."


@dataclass(frozen=True)
class Reply:
    rcode: str
    answers: frozenset[str]
    glue: frozenset[str]


def query_server(port: int, name: str, kind: str) -> Reply:
    query = dns.message.make_query(name, kind, use_edns=0, payload=4096)
    if kind == "SRV":  # glue that does not fit is left out, and our limit over UDP is lower
        message = dns.query.tcp(query, "127.0.0.1", port=port, timeout=PATIENCE_SECONDS)
    else:
        message, _ = dns.query.udp_with_fallback(query, "127.0.0.1", port=port, timeout=PATIENCE_SECONDS)
    return Reply(dns.rcode.to_text(message.rcode()), _texts(message.answer), _texts(message.additional))


def _texts(section: Any) -> frozenset[str]:
    return frozenset(
        f"{rrset.name.to_text().lower()} {rrset.ttl} {dns.rdatatype.to_text(rrset.rdtype)} {record.to_text().lower()}"
        for rrset in section
        for record in rrset
    )


async def write(plane: ControlPlane, states: list[State]) -> None:
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        busy = asyncio.Semaphore(20)

        async def create(state: State) -> None:
            async with busy:
                await client.create(NAMESPACES, {"metadata": {"name": state.namespace}})
                for service in state.services:
                    await client.create(SERVICES, service, state.namespace)
                for slice_ in state.slices:
                    await client.create(ENDPOINT_SLICES, slice_, state.namespace)

        await asyncio.gather(*(create(state) for state in states[:-1]))
        await create(states[-1])


def sentinel() -> State:
    address: Json = {"addresses": ["10.99.0.1"], "conditions": {"ready": True}}
    labels = {"kubernetes.io/service-name": "done"}
    metadata = {"name": "done", "labels": labels}
    slice_ = {"metadata": metadata, "addressType": "IPv4", "ports": [], "endpoints": [address]}
    return State("sentinel", [_service("done", clusterIP="None")], [slice_])


@dataclass
class DifferentialResult:
    questions: int
    differences: list[str]


def compare(ours: int, theirs: int, states: list[State]) -> DifferentialResult:
    result = DifferentialResult(0, [])
    for state in states:
        names = [(f"{name}.{DOMAIN}", kind) for name, kinds in names_of(state) for kind in kinds]
        names += [(name, "PTR") for name in reverse_names_of(state)]
        for name, kind in dict.fromkeys(names):
            result.questions += 1
            our_reply, their_reply = query_server(ours, name, kind), query_server(theirs, name, kind)
            if our_reply != their_reply and not _is_intended(name, kind, our_reply, their_reply):
                result.differences.append(f"{name} {kind}\n  ours   {our_reply}\n  theirs {their_reply}")
    return result


def _is_intended(name: str, kind: str, ours: Reply, theirs: Reply) -> bool:
    """Unknown names are forwarded, and there is no upstream here: ours refuses, CoreDNS fails.

    CoreDNS answers NXDOMAIN to TXT queries for a namespace, but NOERROR to other types. Resolvers that cache denials
    by RFC 8020 then deny all names below it.
    """
    if kind == "PTR":
        return (ours.rcode, theirs.rcode) == ("REFUSED", "SERVFAIL")
    of_namespace = name.count(".") == DOMAIN.count(".") + 2
    return kind == "TXT" and of_namespace and (ours.rcode, theirs.rcode) == ("NOERROR", "NXDOMAIN")


def wait(port: int) -> None:
    """Over TCP, which fails at once while the server does not listen yet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    query = dns.message.make_query(f"done.sentinel.svc.{DOMAIN}", "A")
    while time.monotonic() < deadline:
        try:
            if dns.query.tcp(query, "127.0.0.1", port=port, timeout=PATIENCE_SECONDS).answer:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"the server on port {port} did not learn the last state within {PATIENCE_SECONDS:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    states = random_states(options.states, options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "plane")
        plane = ControlPlane.start(directory, programs=(Program.ETCD, Program.APISERVER))
        try:
            return _run(plane, states, Path(scratch))
        finally:
            controlplane.remove(directory)


def _run(plane: ControlPlane, states: list[State], scratch: Path) -> int:
    asyncio.run(write(plane, states))
    ours, theirs = free_port(), free_port()
    command = [
        Path(sys.executable).with_name("zonewise"),
        "dns",
        "--kubeconfig",
        plane.kubeconfig,
        "--listen",
        "127.0.0.1",
    ]
    more = ["--port", str(ours), "--no-forward", "--health-port", "0", "--pods", "insecure", "--log-level", "warning"]
    server = subprocess.Popen([*command, *more, "--lameduck-seconds", "0"])
    peer = CoreDns(plane.kubeconfig, theirs, cache=False, directory=scratch)
    try:
        wait(ours)
        wait(theirs)
        result = compare(ours, theirs, states)
    finally:
        peer.stop()
        server.terminate()
        server.wait()
    print(*result.differences, sep="\n")
    print(f"{len(states) - 1} states, {result.questions} questions, {len(result.differences)} differences")
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
