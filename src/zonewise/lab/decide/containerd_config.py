"""Configuration of a node's containerd and of its CNI plugins. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.decide.requirements import effective_capabilities

SOCKET: Final = "/run/containerd/containerd.sock"
CNI_DIRECTORY: Final = "/etc/cni/net.d"
CNI_PLUGINS: Final = "/usr/lib/cni"
POD_LINK: Final = "lab-ptp"
POD_LINK_PLUGIN: Final = f"""\
#!/bin/sh
# The plugin ptp, without the two seconds in which IPv6 looks for duplicates of an address that only this pod has.
[ "$CNI_COMMAND" != ADD ] ||
  nsenter --net="$CNI_NETNS" -- sh -c 'echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad' </dev/null
exec {CNI_PLUGINS}/ptp
"""
# `opt` and `nri` make directories in /opt, which is the machine's.
_DISABLED: Final = ("io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing")
_CAP_SYS_RESOURCE: Final = 24  # capabilities(7)


def may_raise_oom_priority(status: str) -> bool:
    """Whether a process with this text of /proc/PID/status may lower oom_score_adj, as the kubelet asks for in most pods."""
    return bool(effective_capabilities(status) >> _CAP_SYS_RESOURCE & 1)


def config_toml(pause_image: str, plugins: Path, *, restrict_oom_score_adj: bool) -> str:
    """`plugins` has POD_LINK_PLUGIN.

    Restricted, a container's oom_score_adj is never below containerd's own; without the right to it runc would fail.
    """
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [{", ".join(f'"{plugin}"' for plugin in _DISABLED)}]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause_image}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {str(restrict_oom_score_adj).lower()}
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}", "{CNI_PLUGINS}"]
    conf_dir = "{CNI_DIRECTORY}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def import_config_toml(root: str) -> str:
    """Of a containerd that only takes images in: without the plugins for pods."""
    disabled = [*_DISABLED, "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
    return f"""\
version = 3
root = "{root}"
state = "/run/containerd"
disabled_plugins = [{", ".join(f'"{plugin}"' for plugin in disabled)}]

[grpc]
  address = "{SOCKET}"
"""


def cni_network(node: NodePlan) -> dict[str, Any]:
    """Pods hang off their node by routed links, so that what they send passes the node's own rules."""
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": POD_LINK,
                "mtu": 1500,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(prefix)}] for prefix in node.pods],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    "dataDir": "/run/cni",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
