"""What a proxy's configuration makes of the ranges that it knows."""

from __future__ import annotations

import pytest

from zonewise.proxy.server import ProxyConfig

SERVICE_RANGES = ("10.96.0.0/12",)


@pytest.mark.parametrize(
    ("of_nodes", "barred"),
    [
        pytest.param(("10.244.1.0/24",), {"10.244.1.7"}, id="those of nodes count, not the flag's"),
        pytest.param((), {"10.244.1.7", "10.9.9.9"}, id="the flag's count where no node has any"),
    ],
)
def test_pod_ranges_that_bar_external_ips(of_nodes: tuple[str, ...], barred: set[str]) -> None:
    config = ProxyConfig("a1", pod_ranges=("10.0.0.0/8",))
    limits = config.address_limits(SERVICE_RANGES, of_nodes)
    assert {address for address in ("10.244.1.7", "10.9.9.9", "192.0.2.1") if limits.of_pods(address)} == barred
