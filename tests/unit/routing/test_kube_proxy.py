"""What a stock kube-proxy chooses, case by case.

Endpoints are written as a number (10.0.0.number:80), `@` and the letters of the zones it is hinted for, `#` and those
of the nodes, then `=` for one on this node (node n in zone a), `!` for not ready and `~` for terminating but serving.
"""

import re

import pytest

from unit.routing.build import endpoint, node, service
from zonewise.api.names import OLD_HINTS, TOPOLOGY_MODE
from zonewise.objects import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Metadata,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from zonewise.routing.kube_proxy import (
    ProxyTarget,
    TrafficPolicies,
    categorize,
    merge,
    stock_choice,
    traffic_policies,
)
from zonewise.routing.reason import RoutingCode, RoutingSubject

CLUSTER = TrafficPolicies()
LOCAL = TrafficPolicies(uses_cluster=False, uses_local=True)
BOTH = TrafficPolicies(uses_cluster=True, uses_local=True)

HTTP = ServicePort(name="http", port=80)


def read_target(word: str) -> ProxyTarget:
    match = re.fullmatch(r"(?P<number>\d)(@(?P<zones>\w+))?(#(?P<nodes>\w+))?(?P<flags>[=!~]*)", word)
    assert match
    flags = match["flags"]
    return ProxyTarget(
        address=match["number"],
        local="=" in flags,
        ready=not {"!", "~"} & set(flags),
        draining="~" in flags,
        zone_hints=frozenset(match["zones"] or ""),
        node_hints=frozenset(match["nodes"] or ""),
    )


CHOICES = {
    # name: policies, endpoints, cluster, local, reachable, has any, code
    "no endpoints": (CLUSTER, "", "", "", "", False, RoutingCode.NO_ENDPOINTS),
    "no endpoints, local": (LOCAL, "", "", "", "", False, RoutingCode.NO_ENDPOINTS),
    "no hints": (CLUSTER, "1 2", "12", "", "12", True, RoutingCode.BALANCED),
    "all hinted, some for this zone": (CLUSTER, "1@a 2@b 3@c 4@a", "14", "", "14", True, RoutingCode.PROXY_SAME_ZONE),
    "several hints each": (CLUSTER, "1@abc 2@bc 3@bd 4@a", "14", "", "14", True, RoutingCode.PROXY_SAME_ZONE),
    "one hint is missing": (CLUSTER, "1@a 2@b 3 4@a", "1234", "", "1234", True, RoutingCode.MISSING_HINTS),
    "none for this zone": (CLUSTER, "1@b 2@c", "12", "", "12", True, RoutingCode.ZONE_NOT_HINTED),
    "unready without hint": (CLUSTER, "1@a 2@b 3!", "1", "", "1", True, RoutingCode.PROXY_SAME_ZONE),
    "only unready for this zone": (CLUSTER, "1@a! 2@b 3@c 4@a!", "23", "", "23", True, RoutingCode.ZONE_NOT_HINTED),
    "for this node": (CLUSTER, "1@a#n 2@b#m 3@c#o 4@a#p", "1", "", "1", True, RoutingCode.PROXY_SAME_NODE),
    "a node hint is missing": (CLUSTER, "1@a#n 2@b 3@c#o 4@a#p", "14", "", "14", True, RoutingCode.PROXY_SAME_ZONE),
    "no node and no zone hint on one": (CLUSTER, "1@a#n 2 3@c#o", "123", "", "123", True, RoutingCode.MISSING_HINTS),
    "none for this node": (CLUSTER, "1@a#m 2@b#o", "1", "", "1", True, RoutingCode.PROXY_SAME_ZONE),
    "node hints alone, none for this node": (CLUSTER, "1#m 2#o", "12", "", "12", True, RoutingCode.BALANCED),
    "nothing ready": (CLUSTER, "1! 2!", "", "", "", False, RoutingCode.NO_ENDPOINTS),
    "some ready": (CLUSTER, "1! 2", "2", "", "2", True, RoutingCode.BALANCED),
    "all terminating": (CLUSTER, "1~= 2~", "12", "", "12", True, RoutingCode.ONLY_TERMINATING),
    "terminating ignores hints": (CLUSTER, "1@a~ 2@b~ 3!", "12", "", "12", True, RoutingCode.ONLY_TERMINATING),
    "terminating waits for the last ready one": (CLUSTER, "1 2~", "1", "", "1", True, RoutingCode.BALANCED),
    "local, all remote": (LOCAL, "1 2", "", "", "", True, RoutingCode.PROXY_LOCAL_ONLY),
    "local, all here": (LOCAL, "1= 2=", "", "12", "12", True, RoutingCode.PROXY_LOCAL_ONLY),
    "local, some here": (LOCAL, "1= 2", "", "1", "1", True, RoutingCode.PROXY_LOCAL_ONLY),
    "local ignores hints": (LOCAL, "1@b= 2@a", "", "1", "1", True, RoutingCode.PROXY_LOCAL_ONLY),
    "local, terminating here": (LOCAL, "1~= 2", "", "1", "1", True, RoutingCode.PROXY_LOCAL_ONLY),
    "local, ready here before terminating": (LOCAL, "1~= 2=", "", "2", "2", True, RoutingCode.PROXY_LOCAL_ONLY),
    "local, nothing usable anywhere": (LOCAL, "1! 2!=", "", "", "", False, RoutingCode.PROXY_LOCAL_ONLY),
    "both, hints for the cluster half only": (
        BOTH,
        "1@a= 2@b= 3@c 4@a",
        "14",
        "12",
        "124",
        True,
        RoutingCode.PROXY_SAME_ZONE,
    ),
    "both, some here": (BOTH, "1= 2", "12", "1", "12", True, RoutingCode.BALANCED),
    "both, none here": (BOTH, "1 2", "12", "", "12", True, RoutingCode.BALANCED),
    "both, all remote and terminating": (BOTH, "1~ 2~", "12", "", "12", True, RoutingCode.ONLY_TERMINATING),
    "both, terminating only here": (BOTH, "1 2!= 3~= 4~", "1", "3", "13", True, RoutingCode.BALANCED),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name: str) -> None:
    policies, words, cluster, local, reachable, has_any, code = CHOICES[name]
    choice = categorize([read_target(word) for word in words.split()], policies, "n", "a")
    assert ("".join(choice.cluster), "".join(choice.local), "".join(choice.reachable)) == (cluster, local, reachable)
    assert (choice.has_any, choice.reason.code) == (has_any, code)


def test_node_without_zone_uses_all_endpoints() -> None:
    choice = categorize([read_target("1@a"), read_target("2@b")], CLUSTER, "n", "")
    assert choice.cluster == ("1", "2")
    assert (choice.reason.code, choice.reason.blame) == (RoutingCode.NODE_WITHOUT_ZONE, (RoutingSubject("Node", "n"),))


def test_endpoints_without_hint_are_blamed() -> None:
    choice = categorize([read_target("1@a"), read_target("2"), read_target("3")], CLUSTER, "n", "a")
    assert choice.reason.blame == (RoutingSubject("Endpoint", "2"), RoutingSubject("Endpoint", "3"))


def slice_of(*endpoints: Endpoint, name: str = "web-1", **changes: object) -> EndpointSlice:
    labels = {"kubernetes.io/service-name": "web"}
    made = {
        "metadata": Metadata(name=name, namespace="shop", labels=labels),
        "endpoints": endpoints,
        "ports": (EndpointPort(name="http", port=8080),),
    }
    return EndpointSlice(**(made | changes))


MERGED = {
    "the first address only": (
        [slice_of(Endpoint(addresses=("10.0.0.1", "10.0.0.2")))],
        ["10.0.0.1:8080"],
    ),
    "no address": ([slice_of(Endpoint(addresses=()))], []),
    "no endpoints at all": ([slice_of(endpoints=None)], []),
    "no ports at all": ([slice_of(endpoint("10.0.0.1"), ports=None)], []),
    "a port without name": ([slice_of(endpoint("10.0.0.1"), ports=(EndpointPort(port=8080),))], []),
    "a port without number": ([slice_of(endpoint("10.0.0.1"), ports=(EndpointPort(name="http"),))], []),
    "port zero": ([slice_of(endpoint("10.0.0.1"), ports=(EndpointPort(name="http", port=0),))], []),
    "another port": ([slice_of(endpoint("10.0.0.1"), ports=(EndpointPort(name="metrics", port=9),))], []),
    "another protocol": (
        [slice_of(endpoint("10.0.0.1"), ports=(EndpointPort(name="http", port=8080, protocol="UDP"),))],
        [],
    ),
    "two slices with other port numbers": (
        [
            slice_of(endpoint("10.0.0.1")),
            slice_of(endpoint("10.0.0.1"), name="web-2", ports=(EndpointPort(name="http", port=81),)),
        ],
        ["10.0.0.1:8080", "10.0.0.1:81"],
    ),
    "leading zeros": ([slice_of(endpoint("010.000.0.001"))], ["10.0.0.1:8080"]),
    "IPv6 in long": ([slice_of(endpoint("2001:0db8:0::1"))], ["[2001:db8::1]:8080"]),
    "no address of any kind": ([slice_of(endpoint("web.example"))], ["web.example:8080"]),
    "IPv4 in IPv6": ([slice_of(endpoint("::ffff:10.0.0.1"))], ["10.0.0.1:8080"]),
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_addresses(name: str) -> None:
    slices, addresses = MERGED[name]
    assert [target.address for target in merge(slices, HTTP, "n")] == addresses


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_non_terminating_endpoint_wins_for_one_address(order: tuple[int, int]) -> None:
    old = endpoint("10.0.0.1", ready=False, serving=True, terminating=True)
    new = endpoint("10.0.0.1", ready=True)
    slices = [slice_of(candidate, name=f"web-{number}") for candidate, number in zip((old, new), order, strict=True)]
    (target,) = merge(slices, HTTP, "n")
    assert target.ready


@pytest.mark.parametrize(
    ("conditions", "ready", "draining"),
    [
        ({"ready": None}, True, False),
        ({"ready": False}, False, False),
        ({"ready": False, "terminating": True}, False, True),
        ({"ready": False, "serving": False, "terminating": True}, False, False),
        ({"ready": True, "serving": True, "terminating": True}, True, True),
    ],
)
def test_unset_conditions(conditions: dict[str, bool | None], ready: bool, draining: bool) -> None:
    (target,) = merge([slice_of(endpoint("10.0.0.1", **conditions))], HTTP, "n")
    assert (target.ready, target.draining) == (ready, draining)


def with_ingress(*ingress: LoadBalancerIngress, **spec: object) -> Service:
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress))
    return Service(metadata=Metadata(name="web", namespace="shop"), spec=ServiceSpec(**spec), status=status)


NODE_PORT = ServicePort(name="http", port=80, node_port=30080)
POLICIES = {
    "plain": (service(), HTTP, CLUSTER),
    "internal local": (service(internal_traffic_policy="Local"), HTTP, LOCAL),
    "internal local with a node port": (service(internal_traffic_policy="Local", type="NodePort"), NODE_PORT, BOTH),
    "external local with a node port": (service(external_traffic_policy="Local", type="NodePort"), NODE_PORT, BOTH),
    "external local, nothing outside": (service(external_traffic_policy="Local"), HTTP, CLUSTER),
    "external local, an external IP": (
        service(external_traffic_policy="Local", external_ips=("192.0.2.1",)),
        HTTP,
        BOTH,
    ),
    "external local, an external IP of the other family": (
        service(external_traffic_policy="Local", external_ips=("2001:db8::1",)),
        HTTP,
        CLUSTER,
    ),
    "external local behind a balancer": (
        with_ingress(LoadBalancerIngress(ip="192.0.2.1"), type="LoadBalancer", external_traffic_policy="Local"),
        HTTP,
        BOTH,
    ),
    "external local behind a proxying balancer": (
        with_ingress(
            LoadBalancerIngress(ip="192.0.2.1", ip_mode="Proxy"), type="LoadBalancer", external_traffic_policy="Local"
        ),
        HTTP,
        CLUSTER,
    ),
    "external local behind a balancer with a name only": (
        with_ingress(LoadBalancerIngress(), type="LoadBalancer", external_traffic_policy="Local"),
        HTTP,
        CLUSTER,
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_traffic_policies(name: str) -> None:
    svc, port, policies = POLICIES[name]
    assert traffic_policies(svc, port) == policies


CLIENT = node("n", "a")
SLICES = [
    slice_of(endpoint("10.0.0.1", zones="a"), endpoint("10.0.0.2", zones="b")),
    slice_of(endpoint("10.0.0.3", zones="a", nodes="n"), name="web-2"),
]


def test_a_whole_service() -> None:
    choice = stock_choice(service(cluster_ip="10.96.0.1"), HTTP, SLICES, CLIENT)
    assert choice.cluster == ("10.0.0.1:8080", "10.0.0.3:8080")
    assert choice.reason.facts == {"chosen": 2, "ready": 3}


def labelled(**labels: str) -> EndpointSlice:
    labels = {"kubernetes.io/service-name": "web"} | labels
    return slice_of(endpoint("10.0.0.9"), metadata=Metadata(name="x", namespace="shop", labels=labels))


UNSEEN = {
    "of another family": slice_of(endpoint("2001:db8::9"), address_type="IPv6"),
    "of another Service": labelled(**{"kubernetes.io/service-name": "api"}),
    "for another proxy": labelled(**{"service.kubernetes.io/service-proxy-name": "zonewise"}),
    "headless": labelled(**{"service.kubernetes.io/headless": ""}),
    "in another namespace": slice_of(
        endpoint("10.0.0.9"),
        metadata=Metadata(name="x", namespace="other", labels={"kubernetes.io/service-name": "web"}),
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_slices_that_kube_proxy_ignores(name: str) -> None:
    choice = stock_choice(service(cluster_ip="10.96.0.1"), HTTP, [*SLICES, UNSEEN[name]], CLIENT)
    assert choice.cluster == ("10.0.0.1:8080", "10.0.0.3:8080")


LEFT_ALONE = {
    "headless": service(cluster_ip="None"),
    "no address yet": service(),
    "another name": service(cluster_ip="10.96.0.1", type="ExternalName"),
    "another proxy's": Service(
        metadata=Metadata(
            name="web", namespace="shop", labels={"service.kubernetes.io/service-proxy-name": "zonewise"}
        ),
        spec=ServiceSpec(cluster_ip="10.96.0.1"),
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_services_that_kube_proxy_ignores(name: str) -> None:
    choice = stock_choice(LEFT_ALONE[name], HTTP, SLICES, CLIENT)
    assert (choice.reachable, choice.reason.code) == ((), RoutingCode.PROXY_LEAVES_ALONE)


SAME_ZONE, ALL, IGNORED = 2, 3, RoutingCode.PROXY_IGNORES_HINTS
VERSIONS = {
    "1.36, no annotation": (36, {}, SAME_ZONE, RoutingCode.PROXY_SAME_ZONE),
    "1.31, no annotation": (31, {}, SAME_ZONE, RoutingCode.PROXY_SAME_ZONE),
    "1.31, switched off": (31, {OLD_HINTS: "Disabled"}, SAME_ZONE, RoutingCode.PROXY_SAME_ZONE),
    "1.30, no annotation": (30, {}, ALL, IGNORED),
    "1.30, mode Auto": (30, {TOPOLOGY_MODE: "Auto"}, SAME_ZONE, RoutingCode.PROXY_SAME_ZONE),
    "1.30, another maker's mode": (30, {TOPOLOGY_MODE: "example.com/x"}, SAME_ZONE, RoutingCode.PROXY_SAME_ZONE),
    "1.27, switched off": (27, {OLD_HINTS: "disabled"}, ALL, IGNORED),
    "1.26, mode Auto is not known": (26, {TOPOLOGY_MODE: "Auto"}, ALL, IGNORED),
    "1.26, auto": (26, {OLD_HINTS: "auto"}, SAME_ZONE, RoutingCode.PROXY_SAME_ZONE),
    "1.26, another value": (26, {OLD_HINTS: "yes"}, ALL, IGNORED),
    "1.23, auto behind a gate": (23, {OLD_HINTS: "auto"}, ALL, IGNORED),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_versions_that_use_hints(name: str) -> None:
    minor, annotations, count, code = VERSIONS[name]
    choice = stock_choice(service(annotations, cluster_ip="10.96.0.1"), HTTP, SLICES, CLIENT, minor=minor)
    assert (len(choice.cluster), choice.reason.code) == (count, code)


@pytest.mark.parametrize(("minor", "count"), [(34, 1), (33, 2)])
def test_node_hints_are_used_since_1_34(minor: int, count: int) -> None:
    slices = [slice_of(endpoint("10.0.0.1", zones="a", nodes="n"), endpoint("10.0.0.2", zones="a", nodes="m"))]
    choice = stock_choice(service(cluster_ip="10.96.0.1"), HTTP, slices, CLIENT, minor=minor)
    assert len(choice.cluster) == count
