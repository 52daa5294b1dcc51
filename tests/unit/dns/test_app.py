"""What the command line means, and what it says of a mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dns.flags
import dns.message
import pytest

from zonewise.dns import app
from zonewise.dns.app import DnsOptions, controller_config, open_sockets
from zonewise.dns.decide.fast_path import ask_over_tcp
from zonewise.dns.wire.names import WrongNameError, dashed, to_text, to_wire, undashed
from zonewise.errors import UsageError, ZonewiseError

ASKED = DnsOptions(
    domain="cluster.local", listen=("127.0.0.1",), port=0, processes=2, ttl=5, pods="disabled",
    name_endpoints_by_pod=False, locate="ranges", upstreams=("10.0.0.1",), forward=True, forwarders=("10.0.0.7/8",),
    queries_per_second=0, cache_seconds=30, stale_seconds=60, log_queries=False,
)  # fmt: skip


def test_options() -> None:
    options = controller_config(ASKED)
    assert options.settings.servers == (bytes((127, 0, 0, 1)),)
    assert options.orders.upstreams == ("10.0.0.1",)
    assert options.orders.forwarders == ("10.0.0.0/8",)
    assert controller_config(replace(ASKED, forward=False)).orders.upstreams == ()


def test_other_servers_are_those_of_resolv_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "RESOLV_CONF", tmp_path / "resolv.conf")
    assert controller_config(replace(ASKED, upstreams=())).orders.upstreams == ()
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.2\n")
    assert controller_config(replace(ASKED, upstreams=())).orders.upstreams == ("10.0.0.2",)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"domain": "a..b"}, "write one such as cluster.local"),
        ({"upstreams": ("dns.example",)}, "write an address such as"),
        ({"forwarders": ("10.0.0.0/99",)}, "write a range such as"),
    ],
)
def test_mistakes_are_told_with_what_to_write(wrong: dict[str, object], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        controller_config(replace(ASKED, **wrong))  # type: ignore[arg-type]


def test_doors_share_their_port_with_a_successor() -> None:
    with pytest.raises(UsageError, match="write one such as"):
        open_sockets(replace(ASKED, listen=("somewhere",)))
    old = open_sockets(replace(ASKED, listen=("127.0.0.1", "127.0.0.2")))
    new = open_sockets(replace(ASKED, port=old.port))
    assert new.port == old.port
    assert [len(process) for process in old.udp] == [2, 2]
    assert len(old.tcp) == 2
    old.close()
    new.close()
    with pytest.raises(ZonewiseError, match="choose another with --port"):
        open_sockets(replace(ASKED, listen=("192.0.2.1",), port=5353))


def test_a_client_that_asks_too_much_is_sent_to_tcp_with_less_than_it_sent() -> None:
    query = dns.message.make_query("web.shop.svc.cluster.local.", "A", use_edns=0)
    written = ask_over_tcp(query.to_wire())
    reply = dns.message.from_wire(written)
    assert reply.flags & dns.flags.TC
    assert reply.id == query.id
    assert len(written) <= len(query.to_wire())
    assert ask_over_tcp(query.to_wire()[:20]) == b""
    assert ask_over_tcp(b"") == b""


def test_names() -> None:
    assert to_wire("A.b.") == b"\1a\1b\0"
    assert to_wire(".") == b"\0"
    assert to_text(b"\3a.b\1\xff\0") == r"a\046b.\255."
    assert to_text(b"\0") == "."
    for wrong in ("a..b", "x" * 64):
        with pytest.raises(WrongNameError):
            to_wire(wrong)
    for address in ("10.0.0.7", "fd00::7", "::1"):
        assert str(undashed(dashed(address))) == address
    assert dashed("fd00::") == "fd00--0"
    assert undashed("web") is None
