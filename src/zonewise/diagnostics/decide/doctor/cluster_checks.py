"""The doctor's checks of the cluster itself: server, clocks, rights, node labels and data plane. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from zonewise.api.names import BETA_REGION, BETA_ZONE
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.doctor.findings import (
    CheckGroup,
    Finding,
    FindingLevel,
    counted,
    fine,
    note,
    unknown,
    wrong,
)
from zonewise.diagnostics.decide.explain.data_plane import has_version, kubelet_minor
from zonewise.diagnostics.decide.names import first_names
from zonewise.install.decide.server_version import NO_POLICIES, POLICIES_MINOR, UPGRADE
from zonewise.objects import Node
from zonewise.planning.data_plane import find_data_planes
from zonewise.routing.kube_proxy import FIRST_MINOR_THAT_ALWAYS_HEEDS, FIRST_MINOR_WITH_NODE_HINTS
from zonewise.topology import REGION, ZONE, capacity_of, is_control_plane, is_ready

OLDEST_MINOR: Final = 24
"""In older versions the feature gate of hints is off by default."""
_MAX_SKEW_SECONDS: Final = 5.0
_MAX_SILENT_SECONDS: Final = 60.0
_MAX_NAMED: Final = 5
_MODE: Final = re.compile(r"^\s*mode:\s*[\"']?(\w*)", re.MULTILINE)
_MINOR: Final = re.compile(r"v?1\.(\d+)")


def check_cluster(facts: DoctorFacts, now: datetime) -> Iterator[Finding]:
    yield from _server(facts)
    yield from _clock(facts)
    yield from _node_clocks(facts, now)
    yield from _rights(facts)


def _server(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.live:
        return
    match = _MINOR.match(facts.snapshot.version)
    minor = int(match[1]) if match else 0
    server = f"the API server answers: {facts.snapshot.version}" + (f", as {facts.user}" if facts.user else "")
    if minor >= POLICIES_MINOR:
        yield fine(CheckGroup.CLUSTER, "Server", server)
    elif minor >= OLDEST_MINOR:
        yield wrong(CheckGroup.CLUSTER, "ServerOld", f"{server}; it {NO_POLICIES}", UPGRADE)
    else:
        sentence = f"{server}: hints in EndpointSlices are on by default since 1.{OLDEST_MINOR}"
        yield wrong(CheckGroup.CLUSTER, "ServerTooOld", sentence, f"upgrade to 1.{OLDEST_MINOR} or later")


def _clock(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.ahead_seconds is None:
        return
    if abs(facts.ahead_seconds) <= _MAX_SKEW_SECONDS:
        yield fine(CheckGroup.CLUSTER, "Clock", "this machine's clock agrees with the API server's")
        return
    way = "ahead of" if facts.ahead_seconds > 0 else "behind"
    sentence = f"this machine's clock is {abs(facts.ahead_seconds):.0f} s {way} the API server's"
    yield note(
        CheckGroup.CLUSTER, "ClockSkew", sentence, "set both by NTP: ages of leases and certificates are judged by it"
    )


def _node_clocks(facts: DoctorFacts, now: datetime) -> Iterator[Finding]:
    """A ready node renews its lease every few seconds, by its own clock."""
    ready = {node.metadata.name for node in facts.snapshot.nodes if is_ready(node)}
    ahead, late = list[str](), list[str]()
    for lease in facts.node_leases:
        if lease.metadata.name not in ready or not lease.spec.renew_time:
            continue
        silent = (now - datetime.fromisoformat(lease.spec.renew_time)).total_seconds() - (facts.ahead_seconds or 0.0)
        if silent < -_MAX_SKEW_SECONDS:
            ahead.append(lease.metadata.name)
        elif silent > _MAX_SILENT_SECONDS:
            late.append(lease.metadata.name)
    if ahead or late:
        yield _nodes_finding(
            CheckGroup.CLUSTER,
            "NodeClockSkew",
            FindingLevel.NOTE,
            [*ahead, *late],
            "{have} a clock that is off by more than a few seconds, or {renew} no lease",
            "set the nodes' clocks by NTP",
        )
    elif facts.node_leases:
        yield fine(CheckGroup.CLUSTER, "NodeClocks", f"the clocks of {len(facts.node_leases)} nodes agree")


def _rights(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.allowed:
        return
    missing = [str(right) for right, allowed in facts.allowed.items() if not allowed]
    if missing:
        sentence = f"you may not {missing[0]}" + (f", nor {len(missing) - 1} more" if len(missing) > 1 else "")
        fix = "ask an administrator to run `zonewise install`, or for these rights"
        yield wrong(CheckGroup.CLUSTER, "InstallRights", sentence, fix, tuple(missing))
    else:
        yield fine(CheckGroup.CLUSTER, "InstallRights", "you may install Zonewise")


def check_nodes(facts: DoctorFacts) -> Iterator[Finding]:
    """Control plane nodes need no labels: they have hardly any traffic."""
    nodes = [node for node in facts.snapshot.nodes if not is_control_plane(node.metadata.labels)]
    if not nodes:
        yield wrong(CheckGroup.NODES, "NoNodes", "there is no worker node", "add nodes")
        return
    findings = [*_zones(nodes), *_regions(nodes), *_capacities(nodes)]
    yield from findings
    zones = {zone for node in nodes if (zone := node.metadata.labels.get(ZONE))}
    if len(zones) == 1:
        sentence = f"all nodes are in one zone, {next(iter(zones))}: there is nothing to keep traffic in"
        yield note(CheckGroup.NODES, "OneZone", sentence, "use same-node policies, or spread nodes over zones")
    elif not findings:
        yield fine(CheckGroup.NODES, "Labels", f"{len(nodes)} nodes in {len(zones)} zones, all labelled")


def _zones(nodes: Sequence[Node]) -> Iterator[Finding]:
    labels_of = {_name(node): (node.metadata.labels.get(ZONE), node.metadata.labels.get(BETA_ZONE)) for node in nodes}
    old = [name for name, (current, beta) in labels_of.items() if beta and not current]
    without = [name for name, (current, beta) in labels_of.items() if not current and not beta]
    differ = [
        _name(node)
        for node in nodes
        for current, beta in ((ZONE, BETA_ZONE), (REGION, BETA_REGION))
        if (labels := node.metadata.labels).get(current) and labels.get(beta, labels[current]) != labels[current]
    ]
    if without:
        fix = f"kubectl label node {without[0]} {ZONE}=ZONE"
        words = "{have} no zone label: clients there use every endpoint, and stock automatic hints are off for all"
        yield _nodes_finding(CheckGroup.NODES, "ZoneMissing", FindingLevel.WRONG, without, words, fix)
    if old:
        fix = f"kubectl label node {old[0]} {ZONE}=ZONE, and let the cloud provider's controller do it for new ones"
        words = f"{{have}} the old label {BETA_ZONE} only, which stock components no longer read"
        yield _nodes_finding(CheckGroup.NODES, "OldLabels", FindingLevel.WRONG, old, words, fix)
    if differ:
        words = "{have} beta labels that contradict the current ones, which count"
        yield _nodes_finding(
            CheckGroup.NODES,
            "LabelsDiffer",
            FindingLevel.NOTE,
            differ,
            words,
            "remove the labels failure-domain.beta.kubernetes.io/*",
        )


def _regions(nodes: Sequence[Node]) -> Iterator[Finding]:
    without = [_name(node) for node in nodes if not {REGION, BETA_REGION} & node.metadata.labels.keys()]
    if without:
        fix = f"kubectl label node {without[0]} {REGION}=REGION, where regions matter to you"
        yield _nodes_finding(
            CheckGroup.NODES, "RegionMissing", FindingLevel.NOTE, without, "{have} no region label", fix
        )


def _capacities(nodes: Sequence[Node]) -> Iterator[Finding]:
    without = [_name(node) for node in nodes if is_ready(node) and not capacity_of(node).cpu_millis]
    if without:
        words = "{report} no allocatable CPU: automatic hints can't be weighted by it"
        yield _nodes_finding(
            CheckGroup.NODES, "NoCPU", FindingLevel.WRONG, without, words, f"check the kubelet of {without[0]}"
        )
    not_ready = [_name(node) for node in nodes if not is_ready(node)]
    if not_ready:
        words = "{are} not ready, and {add} no capacity"
        yield _nodes_finding(
            CheckGroup.NODES, "NotReady", FindingLevel.NOTE, not_ready, words, f"kubectl describe node {not_ready[0]}"
        )


def check_data_plane(facts: DoctorFacts) -> Iterator[Finding]:
    names = {daemon_set.metadata.name for daemon_set in facts.daemon_sets}
    if find_data_planes(facts.snapshot.daemon_sets).all_services:
        sentence = "the Zonewise proxy serves all Services, in place of kube-proxy"
        yield fine(CheckGroup.DATA_PLANE, "ZonewiseProxy", sentence)
        return
    if "cilium" in names and (facts.cilium_config or {}).get("kube-proxy-replacement") in {"true", "strict"}:
        yield from _cilium(facts)
    elif names & {"kube-router", "antrea-agent"}:
        other = min(names & {"kube-router", "antrea-agent"})
        sentence = f"{other} may replace kube-proxy, with rules of its own for hints"
        yield note(CheckGroup.DATA_PLANE, "OtherDataPlane", sentence, f"look up how {other} reads EndpointSlice hints")
    elif facts.kube_proxy_config is not None or "kube-proxy" in names:
        yield from _kube_proxy(facts)
    elif facts.live:
        sentence = "no kube-proxy was found: it may run outside of pods, or another data plane serves Services"
        yield unknown(CheckGroup.DATA_PLANE, "NoKubeProxy", sentence, "check that the data plane follows hints")
    yield from _versions(facts)


def _cilium(facts: DoctorFacts) -> Iterator[Finding]:
    if (facts.cilium_config or {}).get("enable-service-topology") == "true":
        yield fine(CheckGroup.DATA_PLANE, "Cilium", "Cilium serves Services, and follows hints")
        return
    sentence = "Cilium replaces kube-proxy, and ignores hints"
    fix = "cilium config set enable-service-topology true (Helm: loadBalancer.serviceTopology=true)"
    yield wrong(CheckGroup.DATA_PLANE, "CiliumIgnoresHints", sentence, fix)


def _kube_proxy(facts: DoctorFacts) -> Iterator[Finding]:
    match = _MODE.search(facts.kube_proxy_config or "")
    mode = (match[1] if match else "") or "iptables"
    if mode == "userspace":
        sentence = "kube-proxy runs in mode userspace, which ignores hints"
        yield wrong(CheckGroup.DATA_PLANE, "KubeProxyMode", sentence, "set mode: nftables or iptables in its config")
    else:
        yield fine(CheckGroup.DATA_PLANE, "KubeProxyMode", f"kube-proxy runs in mode {mode}, which follows hints")


def _versions(facts: DoctorFacts) -> Iterator[Finding]:
    versioned = [node for node in facts.snapshot.nodes if has_version(node)]
    by_minor: dict[int, list[str]] = {}
    for node in versioned:
        by_minor.setdefault(kubelet_minor(node), []).append(_name(node))
    too_old = [name for minor, names in by_minor.items() if minor < OLDEST_MINOR for name in names]
    conditional = [
        name
        for minor, names in by_minor.items()
        if OLDEST_MINOR <= minor < FIRST_MINOR_THAT_ALWAYS_HEEDS
        for name in names
    ]
    if too_old:
        words = f"{{are}} older than 1.{OLDEST_MINOR}: the kube-proxy ignores hints"
        yield _nodes_finding(CheckGroup.DATA_PLANE, "ProxyTooOld", FindingLevel.WRONG, too_old, words, "upgrade them")
    if conditional:
        words = (
            f"{{are}} older than 1.{FIRST_MINOR_THAT_ALWAYS_HEEDS}: kube-proxy follows hints only of annotated Services"
        )
        fix = "annotate Services with service.kubernetes.io/topology-mode: Auto, or upgrade"
        yield _nodes_finding(CheckGroup.DATA_PLANE, "ProxyPicky", FindingLevel.NOTE, conditional, words, fix)
    if versioned and not too_old and not conditional:
        oldest = min(by_minor)
        node_hints = (
            ""
            if oldest >= FIRST_MINOR_WITH_NODE_HINTS
            else f"; hints for nodes count since 1.{FIRST_MINOR_WITH_NODE_HINTS}"
        )
        yield fine(CheckGroup.DATA_PLANE, "ProxyVersions", f"all nodes run 1.{oldest} or later{node_hints}")


def _name(node: Node) -> str:
    return node.metadata.name


def _nodes_finding(
    group: CheckGroup, code: str, level: FindingLevel, names: Sequence[str], words: str, fix: str
) -> Finding:
    distinct = tuple(dict.fromkeys(names))
    sentence = f"{counted(len(distinct), 'node', words)}: {first_names(distinct, _MAX_NAMED)}"
    return Finding(group, code, level, sentence, fix, distinct)
