"""Configuration of kubelets on nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from zonewise.lab.decide import addresses, kubelet_config

NODE = addresses.plan("shop", 3, addresses.zone_names(2), 1).node("zone-b-1")


def test_kubelet_knows_its_clients_and_asks_the_api_server_for_their_rights() -> None:
    config = kubelet_config.kubelet_config("shop", NODE, Path("/node"), Path("/pki/ca.crt"), "10.96.0.10")
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authentication"]["x509"] == {"clientCAFile": "/pki/ca.crt"}
    assert config["authorization"] == {"mode": "Webhook"}
    assert (config["tlsCertFile"], config["tlsPrivateKeyFile"]) == ("/node/kubelet.crt", "/node/kubelet.key")
    assert config["cgroupRoot"] == "/zonewise-shop/zone-b-1"
    assert config["clusterDNS"] == ["10.96.0.10"]


def test_lab_without_dns_server_names_none() -> None:
    assert kubelet_config.kubelet_config("shop", NODE, Path("/node"), Path("/ca"), "")["clusterDNS"] == []


def test_kubelet_is_given_addresses_and_only_labels_it_may_set() -> None:
    argv = kubelet_config.kubelet_argv(Path("/bin/kubelet"), Path("/config"), Path("/kubeconfig"), NODE)
    labels = "topology.kubernetes.io/region=lab,topology.kubernetes.io/zone=zone-b,zonewise.dev/rack=zone-b-r1"
    assert f"--node-labels={labels}" in argv
    assert "--node-ip=100.67.128.10,fd7a:6f6e:6503:200::a" in argv
    assert argv[:4] == ["/bin/kubelet", "--config=/config", "--kubeconfig=/kubeconfig", "--hostname-override=zone-b-1"]


def test_node_exists_with_its_pod_ranges_before_its_kubelet_starts() -> None:
    node = kubelet_config.node_object(NODE)
    assert node["spec"] == {
        "podCIDR": "100.67.129.0/24",
        "podCIDRs": ["100.67.129.0/24", "fd7a:6f6e:6503:201::/64"],
    }
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "zone-b"


RESOLVERS = {
    "a server elsewhere stays": ("nameserver 10.0.0.2\nsearch a.b\n", "nameserver 10.0.0.2\nsearch a.b\n"),
    "a local stub goes": ("# stub\nnameserver 127.0.0.53\noptions edns0\n", "# stub\noptions edns0\n"),
    "IPv6 loopback goes": ("nameserver ::1\nnameserver fd00::1\n", "nameserver fd00::1\n"),
    "a line without an address stays": ("nameserver\n", "nameserver\n"),
    "an empty file": ("", ""),
}


@pytest.mark.parametrize(("text", "expected"), RESOLVERS.values(), ids=RESOLVERS)
def test_pods_resolvers_are_the_machines_without_loopback(text: str, expected: str) -> None:
    assert kubelet_config.resolv_conf(text) == expected


def test_node_finds_its_own_name_in_the_hosts_file() -> None:
    assert "100.67.128.10 zone-b-1\n" in kubelet_config.hosts_file(NODE)


def test_kubelet_acts_as_its_node() -> None:
    assert kubelet_config.node_user("zone-b-1") == ("system:node:zone-b-1", ("system:nodes",))
