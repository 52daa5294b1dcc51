"""Options of `zonewise dns`: the configuration they make, and the errors they cause."""

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

OPTIONS = DnsOptions(
    domain="cluster.local", listen=("127.0.0.1",), port=0, processes=2, ttl=5, pods="disabled",
    name_endpoints_by_pod=False, locate="ranges", upstreams=("10.0.0.1",), forward=True, forwarders=("10.0.0.7/8",),
    queries_per_second=0, forwards_per_second=0, cache_seconds=30, stale_seconds=60, log_queries=False,
)  # fmt: skip


def test_options_make_the_controller_configuration() -> None:
    config = controller_config(OPTIONS)
    assert config.settings.servers == (bytes((127, 0, 0, 1)),)
    assert config.orders.upstreams == ("10.0.0.1",)
    assert config.orders.forwarders == ("10.0.0.0/8",)
    assert controller_config(replace(OPTIONS, forward=False)).orders.upstreams == ()


def test_upstreams_default_to_resolv_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "RESOLV_CONF", tmp_path / "resolv.conf")
    assert controller_config(replace(OPTIONS, upstreams=())).orders.upstreams == ()
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.2\n")
    assert controller_config(replace(OPTIONS, upstreams=())).orders.upstreams == ("10.0.0.2",)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"domain": "a..b"}, "write one such as cluster.local"),
        ({"upstreams": ("dns.example",)}, "write an address such as"),
        ({"forwarders": ("10.0.0.0/99",)}, "write a range such as"),
    ],
)
def test_invalid_option_is_rejected_with_advice(wrong: dict[str, object], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        controller_config(replace(OPTIONS, **wrong))  # type: ignore[arg-type]


def test_sockets_share_their_port_with_a_second_process() -> None:
    with pytest.raises(UsageError, match="write one such as"):
        open_sockets(replace(OPTIONS, listen=("somewhere",)))
    old = open_sockets(replace(OPTIONS, listen=("127.0.0.1", "127.0.0.2")))
    new = open_sockets(replace(OPTIONS, port=old.port))
    assert new.port == old.port
    assert [len(worker) for worker in old.udp] == [2, 2]
    assert len(old.tcp) == 2
    old.close()
    new.close()
    with pytest.raises(ZonewiseError, match="choose another with --port"):
        open_sockets(replace(OPTIONS, listen=("192.0.2.1",), port=5353))


def test_truncated_reply_is_no_longer_than_the_query() -> None:
    query = dns.message.make_query("web.shop.svc.cluster.local.", "A", use_edns=0)
    packet = ask_over_tcp(query.to_wire())
    reply = dns.message.from_wire(packet)
    assert reply.flags & dns.flags.TC
    assert reply.id == query.id
    assert len(packet) <= len(query.to_wire())
    assert ask_over_tcp(query.to_wire()[:20]) == b""
    assert ask_over_tcp(b"") == b""


def test_names_and_addresses_are_converted_both_ways() -> None:
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
