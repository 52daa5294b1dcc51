"""Packets that atheris makes up, for whatever reads packets: queries both ways, and other servers' answers.

What must hold: nothing raises; only replies are sent, never larger than UDP allows; both ways of replying agree. Found
inputs stay in bench/dns/corpus. `python -m bench.dns.fuzz -runs=10000000`; needs `pip install atheris`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["zonewise.dns"]):
    from zonewise.dns import reply, response
    from zonewise.dns.catalog import Catalog, Settings
    from zonewise.dns.message import Query, read
    from zonewise.dns.names import to_wire
    from zonewise.dns.quick import Tally, quick_responder
    from zonewise.dns.service import Domain
    from zonewise.dns.table import Table

import msgspec

from zonewise.objects import EndpointSlice, Key, Service

CORPUS = Path(__file__).parent / "corpus"
DOMAIN = Domain(to_wire("cluster.local"))
SENDER = reply.Sender()


def table() -> Table:
    """A headless Service with endpoints in two zones, one with a cluster IP, one elsewhere."""
    catalog = Catalog(Settings(DOMAIN, servers=(bytes((10, 0, 0, 10)),)))
    made = Table(DOMAIN.wire)
    updates = [*catalog.set_serial(1), *catalog.snapshot(), *catalog.set_namespaces({"s": {}})]
    endpoints = [{"addresses": [f"10.0.0.{n}"], "zone": f"z{n % 2}"} for n in range(1, 80)]
    ports = [{"name": "p", "port": 1}]
    each = msgspec.convert({"addressType": "IPv4", "endpoints": endpoints, "ports": ports}, EndpointSlice)
    specs = {
        "h": {"clusterIP": "None"},
        "c": {"clusterIP": "10.96.0.1", "ports": ports},
        "e": {"type": "ExternalName", "externalName": "x.y"},
    }
    for name, spec in specs.items():
        service = msgspec.convert({"metadata": {"name": name, "namespace": "s"}, "spec": spec}, Service)
        updates += catalog.set_service(Key("s", name), service, [each] if name == "h" else [])
    for update in [*updates, ("loaded",)]:
        made.apply(update)
    return made


TABLE = table()
QUICK = quick_responder(TABLE, Tally())


def must_hold(packet: bytes) -> None:
    quick = QUICK(packet, SENDER)
    careful = reply.respond(TABLE, packet, SENDER, reply.OUR_UDP_BYTES)
    assert (quick is None) == isinstance(careful, reply.Elsewhere)
    if quick:
        assert quick[2] & 0x80
        assert len(quick) <= reply.OUR_UDP_BYTES
        assert isinstance(careful, bytes)
        assert len(careful) == len(quick)
    query = read(packet)
    question = query.question if isinstance(query, Query) else packet[12:30]
    found = response.read_response(packet[:2] + b"\x80" + packet[3:], packet[:2], question)
    if found:
        response.answers_in_full(found, 1)
        if isinstance(query, Query):
            assert len(response.written(found, query, 512, 1)) <= max(512, len(packet) + 11)


def seeds() -> dict[str, bytes]:
    head = b"\0\7\1\0\0\1\0\0\0\0\0"
    opt = b"\0\0\x29\4\xd0\0\0\0\0\0\0"
    names = {
        name: to_wire(f"{name}.s.svc.cluster.local") for name in ("h", "c", "e", "n", "_p._tcp.h", "z0.pin._zone.h")
    }
    plain = {
        f"{name}-{kind}": head + b"\0" + wire + bytes((0, kind, 0, 1))
        for name, wire in names.items()
        for kind in (1, 28, 33)
    }
    return plain | {f"{name}-edns": packet[:11] + b"\1" + packet[12:] + opt for name, packet in plain.items()}


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for name, packet in seeds().items():
        (CORPUS / name).write_bytes(packet)
    atheris.Setup([*sys.argv, "-max_len=1024", str(CORPUS)], must_hold)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
