"""The state of a cluster, from the objects that were read of it: what runs, who leads, what became of every Service. Pure.

`survey` reads a live cluster, the dashboard has its caches, and a dump will do: all fill a `ClusterSnapshot`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from zonewise.api.names import APP_DNS, APP_NAME_LABEL, APP_PROXY
from zonewise.diagnostics.decide.status import storage
from zonewise.diagnostics.decide.status.budgets import budget_status
from zonewise.diagnostics.decide.status.report import (
    BudgetStatus,
    ClusterStatus,
    ComponentStatus,
    LeaderStatus,
    RoutingStatus,
    ServiceState,
    StatusProblem,
    WebhookStatus,
    ZoneStatus,
    ZoneTraffic,
)
from zonewise.diagnostics.decide.status.traffic import InZoneShare, MeasuredTraffic, by_service, flows
from zonewise.objects import ENDPOINT_SLICES, EndpointSlice, Key, Lease, Namespace, Node, Service
from zonewise.objects.admissionregistration import RegisteredWebhook, WebhookConfiguration
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.data_plane import carriers_of
from zonewise.planning.forecast import ClusterForecast, look
from zonewise.planning.snapshot import Snapshot, gather
from zonewise.routing import HintsForm
from zonewise.routing.endpoints import is_ready as endpoint_ready
from zonewise.slices.decide.body import service_key
from zonewise.topology import capacity_of, is_ready, region_of, zone_of

COMPONENTS: Final = (
    "zonewise-controller",
    "zonewise-webhook",
    "zonewise-disruption",
    "zonewise-guard",
    APP_PROXY,
    APP_DNS,
    "zonewise-csi-controller",
    "zonewise-csi-node",
    "zonewise-dashboard",
)
"""By the label that their Deployments, DaemonSets and pods have."""
LEASES: Final[Mapping[str, str]] = {
    "zonewise-endpointslices": "writes slices and hints",
    "zonewise-disruption": "keeps the budgets",
    "zonewise-csi": "takes over the volumes of lost domains",
}
"""By name: what its holder does."""
CONFIGURATIONS: Final = ("zonewise-overlay", "zonewise-disruption")
_SILENT_LEASES: Final = 2.0
"""So many times its duration a lease may be silent: a change of leader takes about one."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What was read. `unread` has a line for each kind that could not be, which then stands here empty."""

    server: str = ""
    version: str = ""
    nodes: Sequence[Node] = ()
    namespaces: Sequence[Namespace] = ()
    services: Sequence[Service] = ()
    slices: Sequence[EndpointSlice] = ()
    deployments: Sequence[Deployment] = ()
    daemon_sets: Sequence[DaemonSet] = ()
    leases: Sequence[Lease] = ()
    webhooks: Sequence[WebhookConfiguration] = ()
    budgets: Sequence[TopologyDisruptionBudget] = ()
    volumes: Sequence[PersistentVolume] = ()
    traffic: MeasuredTraffic = field(default_factory=MeasuredTraffic)
    unread: Sequence[str] = ()


def assemble(seen: ClusterSnapshot, now: datetime, hints: HintsForm = HintsForm.STABLE) -> ClusterStatus:
    """`hints` is what the controller is told of them."""
    carriers = carriers_of([*seen.deployments, *seen.daemon_sets])
    situation = gather(seen.nodes, seen.services, seen.slices, namespaces=seen.namespaces, carriers=carriers)
    zones = tuple(_zones(situation))
    measured = by_service(seen.traffic.total(), (zone.name for zone in zones if zone.name))
    services = tuple(_service(found, measured) for found in look(situation, lambda _service: True, hints))
    components = tuple(sorted(_components(seen), key=lambda found: (found.namespace, found.name)))
    leaders = tuple(_leader(lease, now) for lease in sorted(seen.leases, key=lambda lease: lease.metadata.name))
    webhooks = tuple(_webhooks(seen))
    budgets = tuple(budget_status(found) for found in sorted(seen.budgets, key=lambda found: found.metadata.name))
    readable = not any(line.startswith(ENDPOINT_SLICES.plural) for line in seen.unread)
    troubles = (
        *_runtime_troubles(components, leaders, webhooks),
        *_troubles(services, budgets, readable),
        *_traffic_troubles(seen.traffic, {node.metadata.name for node in seen.nodes if not is_ready(node)}),
    )
    return ClusterStatus(
        at=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        server=seen.server,
        version=seen.version,
        installed=bool(components or leaders or webhooks),
        sentence=_sentence(components, leaders, services, troubles),
        troubles=troubles,
        components=components,
        leaders=leaders,
        webhooks=webhooks,
        zones=zones,
        states=_states(services),
        services=services,
        traffic=_traffic(seen.traffic, measured),
        budgets=budgets,
        volumes=storage.volumes(seen.volumes, seen.nodes),
        takeovers=storage.takeovers(seen.nodes),
        unread=tuple(seen.unread),
    )


def _zones(situation: Snapshot) -> Iterator[ZoneStatus]:
    by_zone: dict[str, list[Node]] = {}
    for node in situation.nodes:
        by_zone.setdefault(zone_of(node.metadata.labels) or "", []).append(node)
    drained = situation.cluster.node_drains.drain.zones
    for name, nodes in sorted(by_zone.items()):
        yield ZoneStatus(
            name=name,
            region=next((region for node in nodes if (region := region_of(node.metadata.labels))), ""),
            nodes=len(nodes),
            ready=sum(map(is_ready, nodes)),
            cpu_millis=sum(capacity_of(node).cpu_millis or 0 for node in nodes),
            drained=name in drained,
        )


def _service(outlook: ClusterForecast, measured: Mapping[Key, InZoneShare]) -> RoutingStatus:
    return RoutingStatus(state=state_of(outlook), outlook=outlook, measured=measured.get(outlook.key))


def state_of(outlook: ClusterForecast) -> ServiceState:
    match outlook:
        case ClusterForecast(endpoints=0):
            return ServiceState.UNSERVED
        case ClusterForecast(cut_off=cut_off) if cut_off:
            return ServiceState.CUT_OFF
        case ClusterForecast(astray=astray) if astray:
            return ServiceState.NOT_IN_FORCE
        case ClusterForecast(policy="none", active=False):
            return ServiceState.NOT_ASKED
        case ClusterForecast(active=True):
            return ServiceState.IN_FORCE
        case _:
            return ServiceState.NOT_IN_FORCE


def _states(services: Iterable[RoutingStatus]) -> dict[ServiceState, int]:
    counted = Counter(service.state for service in services)
    return {state: counted[state] for state in ServiceState}


def _components(seen: ClusterSnapshot) -> Iterator[ComponentStatus]:
    for deployment in seen.deployments:
        status = deployment.status
        yield _component(
            "Deployment", deployment, deployment.spec.replicas, status.ready_replicas, status.updated_replicas
        )
    for daemons in seen.daemon_sets:
        status_ = daemons.status
        yield _component(
            "DaemonSet",
            daemons,
            status_.desired_number_scheduled,
            status_.number_ready,
            status_.updated_number_scheduled,
        )


def _component(kind: str, found: Deployment | DaemonSet, wanted: int, ready: int, up_to_date: int) -> ComponentStatus:
    metadata = found.metadata
    return ComponentStatus(
        name=metadata.name,
        namespace=metadata.namespace,
        kind=kind,
        wanted=wanted,
        ready=ready,
        up_to_date=up_to_date,
    )


def _leader(lease: Lease, now: datetime) -> LeaderStatus:
    spec = lease.spec
    silent = max(0.0, (now - datetime.fromisoformat(spec.renew_time)).total_seconds()) if spec.renew_time else None
    allowed = (spec.lease_duration_seconds or 15) * _SILENT_LEASES
    return LeaderStatus(
        lease=f"{lease.metadata.namespace}/{lease.metadata.name}",
        duty=LEASES.get(lease.metadata.name, ""),
        holder=spec.holder_identity or "",
        silent_seconds=silent,
        transitions=spec.lease_transitions or 0,
        alive=bool(spec.holder_identity) and silent is not None and silent <= allowed,
    )


def _webhooks(seen: ClusterSnapshot) -> Iterator[WebhookStatus]:
    wanted = {
        Key(target.namespace, target.name)
        for configuration in seen.webhooks
        for webhook in configuration.webhooks
        if (target := webhook.client_config.service)
    }
    ready: Counter[Key] = Counter()
    for found in seen.slices:
        if (key := service_key(found)) in wanted:
            ready[key] += sum(map(endpoint_ready, found.endpoints or ()))
    for configuration in sorted(seen.webhooks, key=lambda found: found.metadata.name):
        for webhook in configuration.webhooks:
            yield _webhook(configuration, webhook, ready)


def _webhook(
    configuration: WebhookConfiguration, webhook: RegisteredWebhook, ready: Mapping[Key, int]
) -> WebhookStatus:
    called = webhook.client_config
    service = Key(called.service.namespace, called.service.name) if called.service else None
    return WebhookStatus(
        configuration=configuration.metadata.name,
        name=webhook.name,
        target=str(service) if service else called.url or "",
        failure_policy=webhook.failure_policy,
        trusted=bool(called.ca_bundle),
        endpoints=ready.get(service, 0) if service else None,
    )


def _traffic(measured: MeasuredTraffic, services: Mapping[Key, InZoneShare]) -> ZoneTraffic:
    return ZoneTraffic(
        proxies=measured.proxies,
        answered=len(measured.by_node),
        problem=measured.problem,
        in_zone=sum(shared.in_zone for shared in services.values()),
        cross_zone=sum(shared.cross_zone for shared in services.values()),
        flows=flows(measured.total()),
    )


def _runtime_troubles(
    components: Iterable[ComponentStatus], leaders: Iterable[LeaderStatus], webhooks: Iterable[WebhookStatus]
) -> Iterator[StatusProblem]:
    for component in components:
        if not component.healthy:
            yield StatusProblem(
                code="ComponentNotReady",
                sentence=f"{component.ready} of {component.wanted} pods of {component.namespace}/{component.name} are ready",
                remedy=f"kubectl -n {component.namespace} describe {component.kind.lower()} {component.name}",
            )
    for leader in leaders:
        if not leader.alive:
            silent = "was never renewed" if leader.silent_seconds is None else f"silent {leader.silent_seconds:.0f} s"
            yield StatusProblem(
                code="NoLeader",
                sentence=f"nobody {leader.duty or 'leads'}: lease {leader.lease} is {silent}"
                if leader.holder
                else f"nobody {leader.duty or 'leads'}: lease {leader.lease} has no holder",
                remedy="see that `zonewise controller` runs and may write its lease",
            )
    for webhook in webhooks:
        if not webhook.healthy:
            why = "no ready endpoint stands behind it" if webhook.trusted else "its caBundle is empty"
            yield StatusProblem(
                code="WebhookDown",
                sentence=f"webhook {webhook.name} ({webhook.target}, {webhook.failure_policy}): {why}",
                remedy="see that `zonewise webhook` runs and may write its webhook configuration",
            )


def _troubles(
    services: Sequence[RoutingStatus], budgets: Iterable[BudgetStatus], readable: bool
) -> Iterator[StatusProblem]:
    if readable:
        yield from _service_troubles(services)
    for budget in budgets:
        if budget.trouble:
            sentence = f"budget {budget.namespace}/{budget.name}: {budget.trouble}"
            yield StatusProblem(
                code="BudgetTrouble", sentence=sentence, remedy=f"kubectl -n {budget.namespace} describe tdb"
            )


def _traffic_troubles(measured: MeasuredTraffic, away: set[str]) -> Iterator[StatusProblem]:
    """`away` are the nodes that are not ready."""
    if not measured.proxies or not measured.problem:
        return
    why, remedy = measured.problem, f"kubectl get pods -A -o wide -l {APP_NAME_LABEL}={APP_PROXY}"
    if measured.forbidden:
        remedy = "allow `get` of pods/proxy where the proxies run"
    elif measured.silent and away.issuperset(measured.silent):
        nodes = sorted(measured.silent)
        more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
        why = f"{', '.join(nodes[:_NAMED])}{more} {'is' if len(nodes) == 1 else 'are'} not ready"
        remedy = f"kubectl describe node {nodes[0]}"
    sentence = f"{len(measured.by_node)} of {measured.proxies} proxies told their traffic: {why}"
    yield StatusProblem(code="TrafficUnknown", sentence=sentence, remedy=remedy)


def _service_troubles(services: Sequence[RoutingStatus]) -> Iterator[StatusProblem]:
    for state, code, words in (
        (ServiceState.CUT_OFF, "ServicesCutOff", "clients that reach no endpoint"),
        (ServiceState.NOT_IN_FORCE, "ServicesNotInForce", "a policy that is not in force"),
    ):
        names = [str(service.outlook.key) for service in services if service.state is state]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            have = "Service has" if len(names) == 1 else "Services have"
            yield StatusProblem(
                code=code,
                sentence=f"{len(names)} {have} {words}: {', '.join(names[:_NAMED])}{more}",
                remedy=f"zonewise explain service {names[0]}",
            )


def _sentence(
    components: Sequence[ComponentStatus],
    leaders: Sequence[LeaderStatus],
    services: Sequence[RoutingStatus],
    troubles: Sequence[StatusProblem],
) -> str:
    if troubles:
        return troubles[0].sentence if len(troubles) == 1 else f"{len(troubles)} things want looking at"
    if not components and not leaders:
        return "Zonewise does not run here"
    asking = sum(service.state is ServiceState.IN_FORCE for service in services)
    if not asking:
        return f"all well: none of {len(services)} Services asks for anything"
    ask = "asks for a policy and has it" if asking == 1 else "ask for a policy and have it"
    return f"all well: {asking} of {len(services)} Services {ask}"
