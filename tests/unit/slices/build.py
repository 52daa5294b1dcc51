"""Builders of pods, nodes and Services for the tests of slices, and a store that plans are written to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec

from zonewise.objects import (
    Condition,
    Container,
    Endpoint,
    EndpointSlice,
    Metadata,
    Node,
    NodeStatus,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    Service,
    ServicePort,
    ServiceSpec,
)
from zonewise.routing import HintsForm, RoutingNodes
from zonewise.routing.drain import NO_DRAIN, Drain
from zonewise.slices.decide.body import SliceBody, body_of, patch_of
from zonewise.slices.decide.plan import SlicesPlan, plan_slices
from zonewise.topology import REGION, ZONE

HTTP = ServicePort(name="http", port=80, target_port=8080)
PREFER = {"endpointslice.kubernetes.io/same-zone": "Prefer"}
REQUIRE = {"endpointslice.kubernetes.io/same-zone": "Require"}


def node(name: str, zone: str | None = None, region: str | None = None) -> Node:
    labels = {key: value for key, value in ((ZONE, zone), (REGION, region)) if value}
    ready = Condition(type="Ready", status="True")
    return Node(
        metadata=Metadata(name=name, labels=labels), status=NodeStatus(allocatable={"cpu": "4"}, conditions=(ready,))
    )


def zones(*names: str, nodes_each: int = 2) -> RoutingNodes:
    """Nodes a1, a2, ... in zone a, and so on."""
    return RoutingNodes.of(node(f"{zone}{number}", zone) for zone in names for number in range(1, nodes_each + 1))


def pod(
    name: str,
    *ips: str,
    node_name: str = "a1",
    ready: bool = True,
    terminating: bool = False,
    phase: str = "Running",
    containers: Sequence[Container] = (),
    init_containers: Sequence[Container] = (),
    hostname: str = "",
    subdomain: str = "",
    since: str | None = None,
) -> Pod:
    return Pod(
        metadata=Metadata(
            name=name,
            namespace="shop",
            uid=f"uid-{name}",
            deletion_timestamp="2026-01-01T00:00:00Z" if terminating else None,
        ),
        spec=PodSpec(
            node_name=node_name,
            containers=tuple(containers),
            init_containers=tuple(init_containers),
            hostname=hostname,
            subdomain=subdomain,
        ),
        status=PodStatus(
            phase=phase,
            pod_ip=ips[0] if ips else "",
            pod_ips=tuple(PodIP(ip=ip) for ip in ips),
            conditions=(Condition(type="Ready", status="True" if ready else "False", last_transition_time=since),),
        ),
    )


def pods_in(per_zone: Mapping[str, int], **options: object) -> list[Pod]:
    """Pods web-a-0, web-a-1, ... on node a1, and so on, each with an address of its own."""
    return [
        pod(
            f"web-{zone}-{number}",
            f"10.{ord(zone[0]) - 96}.{number // 250}.{number % 250}",
            node_name=f"{zone}1",
            **options,
        )
        for zone, count in per_zone.items()
        for number in range(count)
    ]


def service(
    annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, **spec: object
) -> Service:
    fields = {"selector": {"app": "web"}, "cluster_ip": "10.96.0.1", "ip_families": ("IPv4",), "ports": (HTTP,)} | spec
    return Service(
        metadata=Metadata(
            name="web",
            namespace="shop",
            uid="uid-web",
            annotations=dict(annotations or {}),
            labels=dict(labels or {}),
            creation_timestamp="2026-01-01T00:00:00Z",
        ),
        spec=ServiceSpec(**fields),
    )


class SliceStore:
    """The slices of one Service as an API server stores them, written only through bodies and patches."""

    def __init__(self, cluster: RoutingNodes, *, most: int = 100, form: HintsForm = HintsForm.STABLE) -> None:
        self.cluster = cluster
        self.most = most
        self.form = form
        self.stored: dict[str, dict[str, object]] = {}
        self._numbers = count(1)

    @property
    def slices(self) -> list[EndpointSlice]:
        return [msgspec.convert(stored, EndpointSlice) for stored in self.stored.values()]

    @property
    def endpoints(self) -> list[Endpoint]:
        return [endpoint for endpoint_slice in self.slices for endpoint in endpoint_slice.endpoints or ()]

    @property
    def by_pod(self) -> dict[str, Endpoint]:
        return {endpoint.target_ref.name: endpoint for endpoint in self.endpoints if endpoint.target_ref}

    @property
    def sizes(self) -> list[int]:
        return sorted(len(endpoint_slice.endpoints or ()) for endpoint_slice in self.slices)

    def plan(
        self, service: Service, pods: Iterable[Pod], *, drained: Drain = NO_DRAIN, trigger_time: str | None = None
    ) -> SlicesPlan:
        return plan_slices(
            service,
            pods,
            self.cluster,
            self.slices,
            most_per_slice=self.most,
            hints=self.form,
            drained=drained,
            trigger_time=trigger_time,
        )

    def sync(
        self, service: Service, pods: Iterable[Pod], *, drained: Drain = NO_DRAIN, trigger_time: str | None = None
    ) -> SlicesPlan:
        plan = self.plan(service, pods, drained=drained, trigger_time=trigger_time)
        for _ in self.write_plan(plan):
            pass
        return plan

    def write_plan(self, plan: SlicesPlan) -> Iterator[None]:
        """One write at a time, in the order of the controller."""
        for body in plan.creates:
            self._create(body)
            yield
        for update in plan.updates:
            name = update.existing.metadata.name
            self.stored[name] = _merged(self.stored[name], patch_of(update.existing, update.body))
            self.stored[name]["metadata"]["resourceVersion"] = str(next(self._numbers))
            yield
        for endpoint_slice in plan.deletes:
            del self.stored[endpoint_slice.metadata.name]
            yield

    def put(self, endpoint_slice: EndpointSlice) -> None:
        self.stored[endpoint_slice.metadata.name] = msgspec.to_builtins(endpoint_slice)

    def _create(self, body: SliceBody) -> None:
        manifest = body_of(body)
        number = next(self._numbers)
        name = f"{manifest['metadata']['generateName']}{number:05}"
        manifest["metadata"] |= {"name": name, "uid": f"uid-{name}", "resourceVersion": str(number)}
        self.stored[name] = manifest


def _merged(target: object, patch: object) -> object:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
