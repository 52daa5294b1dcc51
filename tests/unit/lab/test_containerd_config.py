"""Configuration of containerd and CNI on nodes."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from zonewise.lab.decide import addresses, containerd_config
from zonewise.lab.decide.containerd_config import POD_LINK_PLUGIN

NODE = addresses.plan("lab", 3, addresses.zone_names(2), 1).node("zone-b-1")
STATUS = "Name:\tpython\nCapInh:\t0000000000000000\nCapEff:\t{}\n"
RIGHTS = {
    "root of a machine": (STATUS.format("000001ffffffffff"), True),
    "root without CAP_SYS_RESOURCE": (STATUS.format("000001fffeffffff"), False),
    "a user": (STATUS.format("0000000000000000"), False),
    "unknown": ("", False),
}


@pytest.mark.parametrize(("text", "expected"), RIGHTS.values(), ids=RIGHTS)
def test_right_to_raise_oom_priority_is_read_from_capabilities(text: str, expected: bool) -> None:
    assert containerd_config.may_raise_oom_priority(text) is expected


@pytest.mark.parametrize("restricted", [True, False])
def test_containerd_gets_pause_image_plugins_and_oom_restriction(restricted: bool) -> None:
    text = containerd_config.config_toml("pause:1", Path("/lab/cni"), restrict_oom_score_adj=restricted)
    config = tomllib.loads(text)
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert config["plugins"]["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": "pause:1"}
    assert runtime["restrict_oom_score_adj"] is restricted
    assert runtime["cni"]["bin_dirs"] == ["/lab/cni", "/usr/lib/cni"]
    assert config["grpc"]["address"] == containerd_config.SOCKET


def test_import_runs_without_the_plugins_for_pods() -> None:
    config = tomllib.loads(containerd_config.import_config_toml("/cache/root"))
    assert config["root"] == "/cache/root"
    assert "io.containerd.cri.v1.runtime" in config["disabled_plugins"]
    assert config["grpc"]["address"] == containerd_config.SOCKET


def test_pods_get_addresses_of_both_families_from_their_nodes_ranges() -> None:
    link, ports = containerd_config.cni_network(NODE)["plugins"]
    assert link["ipam"]["ranges"] == [[{"subnet": "100.67.129.0/24"}], [{"subnet": "fd7a:6f6e:6503:201::/64"}]]
    assert (link["type"], ports["type"]) == (containerd_config.POD_LINK, "portmap")


def test_pod_link_plugin_is_a_valid_shell_script(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(POD_LINK_PLUGIN)
    subprocess.run(["sh", "-n", str(plugin)], check=True, timeout=30)
