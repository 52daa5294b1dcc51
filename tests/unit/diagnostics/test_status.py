"""The state of a cluster from its objects, and what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.diagnostics.cluster import NOW, SAME_ZONE, labelled, lease, made, seen, webhook, workload
from support.planning.cluster import node, service, slice_of
from zonewise.diagnostics.decide.status import storage, traffic
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot, build_status
from zonewise.diagnostics.decide.status.report import ServiceState
from zonewise.diagnostics.decide.status.traffic import MeasuredTraffic, TrafficPath
from zonewise.objects import Key, Node
from zonewise.objects.apps import DaemonSet
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.routing import HintsForm


def test_services_are_counted_by_what_became_of_them() -> None:
    found = build_status(seen(), NOW)
    assert found.states == {
        ServiceState.IN_FORCE: 0,
        ServiceState.NOT_IN_FORCE: 1,
        ServiceState.CUT_OFF: 1,
        ServiceState.UNSERVED: 1,
        ServiceState.NOT_ASKED: 1,
    }
    assert [trouble.code for trouble in found.troubles] == ["ServicesCutOff", "ServicesNotInForce"]
    assert (found.installed, found.leaders[0].alive, found.webhooks[0].endpoints) == (True, True, 2)
    assert [(zone.name, zone.nodes, zone.cpu_millis) for zone in found.zones] == [
        ("a", 2, 8000),
        ("b", 2, 8000),
        ("c", 2, 8000),
    ]


def test_a_hard_rule_that_kube_proxy_carries_cuts_nobody_off() -> None:
    """It gives the clients of c every endpoint: nobody is cut off, and the rule is not in force."""
    asking = service("hard", **{SAME_ZONE: "Require"})
    found = build_status(replace(seen(), services=[asking], slices=[slice_of(asking, {"a": 1, "b": 1})]), NOW)
    assert [trouble.code for trouble in found.troubles] == ["WebhookDown", "ServicesNotInForce"]
    assert (found.services[0].state, found.services[0].outlook.cut_off) == (ServiceState.NOT_IN_FORCE, ())


def test_a_drain_that_not_every_node_heeds_is_not_in_force() -> None:
    """Though the Service asks for nothing else: kube-proxy on a node without a zone goes on using what is drained."""
    asking = service("web", **{"zonewise.dev/drain-zone": "a"})
    given = replace(seen(), services=[asking], slices=[slice_of(asking, {"a": 1, "b": 1})])
    assert build_status(given, NOW).services[0].state is ServiceState.IN_FORCE
    (found,) = build_status(replace(given, nodes=[*given.nodes, node("x", "")]), NOW).services
    assert (found.state, found.outlook.astray) == (ServiceState.NOT_IN_FORCE, ("x",))


def test_automatic_hints_are_told_as_the_controller_computes_them() -> None:
    """The strict rule counts only endpoints that say they are ready, as the stock controller does."""
    asking = service("auto", **{"service.kubernetes.io/topology-mode": "Auto"})
    given = replace(seen(), services=[asking], slices=[slice_of(asking, {"a": 10, "b": 1, "c": 1})])
    sentences = {form: build_status(given, NOW, form).services[0].outlook.sentence for form in HintsForm}
    assert sentences[HintsForm.STABLE] != sentences[HintsForm.STRICT]


def test_what_does_not_run_is_a_trouble() -> None:
    sick = replace(
        seen(),
        deployments=[workload("zonewise-controller", readyReplicas=1)],
        leases=[lease("zonewise-endpointslices", 300)],
        webhooks=[webhook(b"")],
    )
    codes = [trouble.code for trouble in build_status(sick, NOW).troubles]
    assert codes[:3] == ["ComponentNotReady", "NoLeader", "WebhookDown"]
    assert "not installed" in build_status(ClusterSnapshot(nodes=[node("a0", "a")]), NOW).sentence


def test_daemon_sets_count_by_nodes() -> None:
    daemons = made(
        DaemonSet, metadata={"name": "zonewise-proxy"}, status={"desiredNumberScheduled": 6, "numberReady": 6}
    )
    assert build_status(replace(seen(), daemon_sets=[daemons]), NOW).components[0].wanted == 6


def budget(reason: str) -> TopologyDisruptionBudget:
    condition = {"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "why"}
    found: TopologyDisruptionBudget = made(
        TopologyDisruptionBudget,
        metadata={"name": "b", "namespace": "shop"},
        spec={"selector": {"matchLabels": {"app": "b"}}, "maxUnavailable": 1},
        status={"conditions": [condition], "domains": [{"name": "a", "slots": 3}]},
    )
    return found


def test_a_budget_that_is_used_up_is_no_trouble_but_one_that_nobody_keeps_is() -> None:
    used, lost = (
        build_status(replace(seen(), budgets=[budget(reason)]), NOW) for reason in ("InsufficientPods", "SyncFailed")
    )
    assert (used.budgets[0].domains[0].pods, used.budgets[0].trouble) == (3, "")
    assert (lost.budgets[0].trouble, lost.budgets[0].limit) == ("DisruptionAllowed: why", "maxUnavailable 1")


METRICS = """# HELP zonewise_proxy_bytes_total Bytes
zonewise_proxy_bytes_total{client_zone="a",endpoint_zone="a",namespace="shop",service="web"} 300.0
zonewise_proxy_bytes_total{client_zone="a",endpoint_zone="b",namespace="shop",service="web"} 1e+02
zonewise_proxy_bytes_total{client_zone="outside",endpoint_zone="b",namespace="shop",service="web"} 7.0
zonewise_proxy_bytes_total{client_zone="a",namespace="shop"} 5.0
zonewise_proxy_bytes_total{client_zone="q\\"\\\\n",endpoint_zone="",namespace="shop",service="web"} nonsense
zonewise_proxy_connections_total{client_zone="a",endpoint_zone="b",namespace="shop",service="web"} 3.0
"""
WEB = Key("shop", "web")


def test_counters_are_read_and_added_up() -> None:
    counted_ = traffic.parse_counters(METRICS)
    assert counted_ == {
        TrafficPath(WEB, "a", "a"): 300,
        TrafficPath(WEB, "a", "b"): 100,
        TrafficPath(WEB, "outside", "b"): 7,
    }
    measured = MeasuredTraffic({"n1": counted_, "n2": {TrafficPath(WEB, "b", "b"): 50.0}}, 3, "one is away")
    found = build_status(replace(seen(), traffic=measured), NOW)
    assert (found.traffic.in_zone, found.traffic.cross_zone, found.traffic.answered) == (350, 100, 2)
    assert found.traffic.share == pytest.approx(350 / 450)
    assert any(trouble.code == "TrafficUnknown" for trouble in found.troubles)


SILENCE = {
    "nobody may ask": (
        MeasuredTraffic({}, 6, "no", ("a0",), forbidden=True),
        "reported their traffic: no",
        "allow `get` of pods/proxy",
    ),
    "their nodes are away": (
        MeasuredTraffic({}, 6, "no answer", ("c1", "c0")),
        "c0, c1 are not ready",
        "kubectl describe node c0",
    ),
    "one is away by itself": (
        MeasuredTraffic({}, 6, "no answer", ("a0", "c0")),
        "reported their traffic: no answer",
        "kubectl get pods",
    ),
}


@pytest.mark.parametrize("name", SILENCE)
def test_why_proxies_do_not_tell(name: str) -> None:
    measured, why, remedy = SILENCE[name]
    away = [made(Node, metadata={"name": name}) if name[0] == "c" else node(name, "a") for name in ("a0", "c0", "c1")]
    (found,) = build_status(ClusterSnapshot(nodes=away, traffic=measured), NOW).troubles
    assert found.code == "TrafficUnknown"
    assert found.sentence.startswith("0 of 6 proxies reported their traffic: ")
    assert found.sentence.endswith(why)
    assert found.remedy.startswith(remedy)


def test_what_came_since_knows_restarts() -> None:
    path, other = TrafficPath(WEB, "a", "b"), TrafficPath(WEB, "a", "a")
    before = MeasuredTraffic({"goes on": {path: 100.0}, "restarts": {path: 100.0}})
    after = MeasuredTraffic({"goes on": {path: 130.0, other: 7.0}, "restarts": {path: 20.0}})
    assert after.since(before) == {path: 30 + 20, other: 7}


def test_a_proxy_that_was_not_heard_once_brings_no_burst() -> None:
    """What it counted since it started is not what came since the last look."""
    path = TrafficPath(WEB, "a", "b")
    heard, missed = {"a0": {path: 1e12}, "b0": {path: 10.0}}, {"b0": {path: 11.0}}
    again = MeasuredTraffic({"a0": {path: 1e12 + 5}, "b0": {path: 13.0}})
    assert again.since(MeasuredTraffic(missed)) == {path: 2.0}
    assert MeasuredTraffic(missed).since(MeasuredTraffic(heard)) == {path: 1.0}
    assert again.since(MeasuredTraffic({"a0": {path: 1e12}, "b0": {path: 12.0}})) == {path: 5.0 + 1.0}


def volume(name: str, zone: str) -> PersistentVolume:
    terms = [
        {"matchExpressions": [{"key": "topology.ceph.zonewise.dev/zone", "operator": "In", "values": [zone]}]},
        {
            "matchExpressions": [
                {"key": f"takeover.ceph.zonewise.dev/zone.{zone}", "operator": "In", "values": ["active"]}
            ]
        },
    ]
    found: PersistentVolume = made(
        PersistentVolume,
        metadata={"name": name},
        spec={
            "csi": {"driver": "ceph.zonewise.dev"},
            "capacity": {"storage": "1Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
        status={"phase": "Bound"},
    )
    return found


def test_volumes_by_domain_and_who_takes_over() -> None:
    nodes = [
        labelled("a0", "a", **{"topology.ceph.zonewise.dev/zone": "a"}),
        labelled("b0", "b", **{"topology.ceph.zonewise.dev/zone": "b", "takeover.ceph.zonewise.dev/zone.a": "active"}),
    ]
    found = storage.volume_domains([volume("v1", "a"), volume("v2", "a"), volume("v3", "b")], nodes)
    assert [(each.domain, each.volumes, each.bytes, each.nodes) for each in found] == [
        ("zone=a", 2, 2 << 30, 2),
        ("zone=b", 1, 1 << 30, 1),
    ]
    (taken,) = storage.takeover_statuses(nodes)
    assert (taken.domain, taken.targets, taken.nodes) == ("zone=a", ("b",), 1)
