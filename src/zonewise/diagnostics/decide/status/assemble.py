"""Builds the status of a cluster from its objects: components, leaders, webhooks, and the state of every Service. Pure.

A `ClusterSnapshot` comes from a live read, from the dashboard's caches, or from a dump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from zonewise.api.names import APP_DNS, APP_NAME_LABEL, APP_PROXY
from zonewise.diagnostics.decide.names import first_names
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
from zonewise.diagnostics.decide.status.traffic import InZoneShare, MeasuredTraffic, share_by_service, zone_flows
from zonewise.objects import ENDPOINT_SLICES, EndpointSlice, HasMetadata, Key, Lease, Namespace, Node, Service
from zonewise.objects.admissionregistration import RegisteredWebhook, WebhookConfiguration
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.objects.discovery import service_key
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.data_plane import find_data_planes
from zonewise.planning.forecast import ServiceForecast, forecast_services
from zonewise.planning.snapshot import Snapshot, build_snapshot
from zonewise.routing import HintsForm
from zonewise.routing.endpoints import is_ready as endpoint_ready
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
"""Values of the name label of our Deployments, DaemonSets and pods."""
LEASE_DUTIES: Final[Mapping[str, str]] = {
    "zonewise-endpointslices": "writes slices and hints",
    "zonewise-disruption": "keeps the budgets",
    "zonewise-csi": "takes over the volumes of lost domains",
}
"""By name of the lease: what its holder does."""
WEBHOOK_CONFIGURATIONS: Final = ("zonewise-overlay", "zonewise-disruption")
_MAX_MISSED_DURATIONS: Final = 2.0
"""A lease is dead after this multiple of its duration; a change of leader takes about one."""
_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The objects that were read. `unread` has a line for each kind that may not be read; its list is empty."""

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


def build_status(snapshot: ClusterSnapshot, now: datetime, hints: HintsForm = HintsForm.STABLE) -> ClusterStatus:
    """`hints` is the setting of the controller."""
    data_planes = find_data_planes([*snapshot.deployments, *snapshot.daemon_sets])
    planning = build_snapshot(
        snapshot.nodes, snapshot.services, snapshot.slices, namespaces=snapshot.namespaces, data_planes=data_planes
    )
    zones = tuple(_zones(planning))
    measured = share_by_service(snapshot.traffic.total(), (zone.name for zone in zones if zone.name))
    services = tuple(
        RoutingStatus(state=state_of(forecast), outlook=forecast, measured=measured.get(forecast.key))
        for forecast in forecast_services(planning, lambda _service: True, hints)
    )
    components = tuple(sorted(_components(snapshot), key=lambda component: (component.namespace, component.name)))
    leaders = tuple(_leader(lease, now) for lease in sorted(snapshot.leases, key=_name))
    webhooks = tuple(_webhooks(snapshot))
    budgets = tuple(map(budget_status, sorted(snapshot.budgets, key=_name)))
    has_slices = not any(line.startswith(ENDPOINT_SLICES.plural) for line in snapshot.unread)
    problems = (
        *_runtime_problems(components, leaders, webhooks),
        *(_service_problems(services) if has_slices else ()),
        *_budget_problems(budgets),
        *_traffic_problems(snapshot.traffic, {node.metadata.name for node in snapshot.nodes if not is_ready(node)}),
    )
    return ClusterStatus(
        at=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        server=snapshot.server,
        version=snapshot.version,
        installed=bool(components or leaders or webhooks),
        sentence=_sentence(components, leaders, services, problems),
        troubles=problems,
        components=components,
        leaders=leaders,
        webhooks=webhooks,
        zones=zones,
        states=_count_states(services),
        services=services,
        traffic=_traffic(snapshot.traffic, measured),
        budgets=budgets,
        volumes=storage.volume_domains(snapshot.volumes, snapshot.nodes),
        takeovers=storage.takeover_statuses(snapshot.nodes),
        unread=tuple(snapshot.unread),
    )


def _name(item: HasMetadata) -> str:
    return item.metadata.name


def _zones(snapshot: Snapshot) -> Iterator[ZoneStatus]:
    by_zone: dict[str, list[Node]] = {}
    for node in snapshot.nodes:
        by_zone.setdefault(zone_of(node.metadata.labels) or "", []).append(node)
    drained = snapshot.cluster.node_drains.drain.zones
    for name, nodes in sorted(by_zone.items()):
        yield ZoneStatus(
            name=name,
            region=next((region for node in nodes if (region := region_of(node.metadata.labels))), ""),
            nodes=len(nodes),
            ready=sum(map(is_ready, nodes)),
            cpu_millis=sum(capacity_of(node).cpu_millis or 0 for node in nodes),
            drained=name in drained,
        )


def state_of(forecast: ServiceForecast) -> ServiceState:
    match forecast:
        case ServiceForecast(endpoints=0):
            return ServiceState.UNSERVED
        case ServiceForecast(cut_off=cut_off) if cut_off:
            return ServiceState.CUT_OFF
        case ServiceForecast(astray=astray) if astray:
            return ServiceState.NOT_IN_FORCE
        case ServiceForecast(policy="none", active=False):
            return ServiceState.NOT_ASKED
        case ServiceForecast(active=True):
            return ServiceState.IN_FORCE
        case _:
            return ServiceState.NOT_IN_FORCE


def _count_states(services: Iterable[RoutingStatus]) -> dict[ServiceState, int]:
    counts = Counter(service.state for service in services)
    return {state: counts[state] for state in ServiceState}


def _components(snapshot: ClusterSnapshot) -> Iterator[ComponentStatus]:
    for deployment in snapshot.deployments:
        replicas = deployment.status
        yield ComponentStatus(
            name=deployment.metadata.name,
            namespace=deployment.metadata.namespace,
            kind="Deployment",
            wanted=deployment.spec.replicas,
            ready=replicas.ready_replicas,
            up_to_date=replicas.updated_replicas,
        )
    for daemon_set in snapshot.daemon_sets:
        daemons = daemon_set.status
        yield ComponentStatus(
            name=daemon_set.metadata.name,
            namespace=daemon_set.metadata.namespace,
            kind="DaemonSet",
            wanted=daemons.desired_number_scheduled,
            ready=daemons.number_ready,
            up_to_date=daemons.updated_number_scheduled,
        )


def _leader(lease: Lease, now: datetime) -> LeaderStatus:
    spec = lease.spec
    silent = max(0.0, (now - datetime.fromisoformat(spec.renew_time)).total_seconds()) if spec.renew_time else None
    allowed_seconds = (spec.lease_duration_seconds or 15) * _MAX_MISSED_DURATIONS
    return LeaderStatus(
        lease=f"{lease.metadata.namespace}/{lease.metadata.name}",
        duty=LEASE_DUTIES.get(lease.metadata.name, ""),
        holder=spec.holder_identity or "",
        silent_seconds=silent,
        transitions=spec.lease_transitions or 0,
        alive=bool(spec.holder_identity) and silent is not None and silent <= allowed_seconds,
    )


def _webhooks(snapshot: ClusterSnapshot) -> Iterator[WebhookStatus]:
    called = {
        Key(target.namespace, target.name)
        for configuration in snapshot.webhooks
        for webhook in configuration.webhooks
        if (target := webhook.client_config.service)
    }
    ready: Counter[Key] = Counter()
    for slice_ in snapshot.slices:
        if (key := service_key(slice_)) in called:
            ready[key] += sum(map(endpoint_ready, slice_.endpoints or ()))
    for configuration in sorted(snapshot.webhooks, key=_name):
        for webhook in configuration.webhooks:
            yield _webhook(configuration, webhook, ready)


def _webhook(
    configuration: WebhookConfiguration, webhook: RegisteredWebhook, ready: Mapping[Key, int]
) -> WebhookStatus:
    config = webhook.client_config
    service = Key(config.service.namespace, config.service.name) if config.service else None
    return WebhookStatus(
        configuration=configuration.metadata.name,
        name=webhook.name,
        target=str(service) if service else urlsplit(config.url or "").netloc,  # the path has the callers' key
        failure_policy=webhook.failure_policy,
        trusted=bool(config.ca_bundle),
        endpoints=ready.get(service, 0) if service else None,
    )


def _traffic(measured: MeasuredTraffic, services: Mapping[Key, InZoneShare]) -> ZoneTraffic:
    return ZoneTraffic(
        proxies=measured.proxies,
        answered=len(measured.by_node),
        problem=measured.problem,
        in_zone=sum(share.in_zone for share in services.values()),
        cross_zone=sum(share.cross_zone for share in services.values()),
        flows=zone_flows(measured.total()),
    )


def _runtime_problems(
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
            yield StatusProblem(
                code="NoLeader",
                sentence=f"no process {leader.duty or 'leads'}: lease {leader.lease} {_lease_problem(leader)}",
                remedy="check that `zonewise controller` runs and may write its lease",
            )
    for webhook in webhooks:
        if not webhook.healthy:
            why = "its Service has no ready endpoint" if webhook.trusted else "its caBundle is empty"
            yield StatusProblem(
                code="WebhookDown",
                sentence=f"webhook {webhook.name} ({webhook.target}, {webhook.failure_policy}): {why}",
                remedy="check that `zonewise webhook` runs and may write its webhook configuration",
            )


def _lease_problem(leader: LeaderStatus) -> str:
    if not leader.holder:
        return "has no holder"
    if leader.silent_seconds is None:
        return "was never renewed"
    return f"was last renewed {leader.silent_seconds:.0f} s ago"


def _budget_problems(budgets: Iterable[BudgetStatus]) -> Iterator[StatusProblem]:
    for budget in budgets:
        if budget.trouble:
            yield StatusProblem(
                code="BudgetTrouble",
                sentence=f"budget {budget.namespace}/{budget.name}: {budget.trouble}",
                remedy=f"kubectl -n {budget.namespace} describe tdb",
            )


def _traffic_problems(measured: MeasuredTraffic, not_ready: set[str]) -> Iterator[StatusProblem]:
    """`not_ready`: names of nodes. Their proxies need no explanation of their own."""
    if not measured.proxies or not measured.problem:
        return
    why, remedy = measured.problem, f"kubectl get pods -A -o wide -l {APP_NAME_LABEL}={APP_PROXY}"
    if measured.forbidden:
        remedy = "allow `get` of pods/proxy and `create` of serviceaccounts/token where the proxies run"
    elif measured.silent and not_ready.issuperset(measured.silent):
        nodes = sorted(measured.silent)
        why = f"{first_names(nodes, _MAX_NAMED)} {'is' if len(nodes) == 1 else 'are'} not ready"
        remedy = f"kubectl describe node {nodes[0]}"
    sentence = f"{len(measured.by_node)} of {measured.proxies} proxies reported their traffic: {why}"
    yield StatusProblem(code="TrafficUnknown", sentence=sentence, remedy=remedy)


def _service_problems(services: Sequence[RoutingStatus]) -> Iterator[StatusProblem]:
    for state, code, words in (
        (ServiceState.CUT_OFF, "ServicesCutOff", "clients that reach no endpoint"),
        (ServiceState.NOT_IN_FORCE, "ServicesNotInForce", "a policy that is not in force"),
    ):
        names = [str(service.outlook.key) for service in services if service.state is state]
        if names:
            have = "Service has" if len(names) == 1 else "Services have"
            yield StatusProblem(
                code=code,
                sentence=f"{len(names)} {have} {words}: {first_names(names, _MAX_NAMED)}",
                remedy=f"zonewise explain service {names[0]}",
            )


def _sentence(
    components: Sequence[ComponentStatus],
    leaders: Sequence[LeaderStatus],
    services: Sequence[RoutingStatus],
    problems: Sequence[StatusProblem],
) -> str:
    if problems:
        return problems[0].sentence if len(problems) == 1 else f"{len(problems)} problems"
    if not components and not leaders:
        return "Zonewise is not installed"
    in_force = sum(service.state is ServiceState.IN_FORCE for service in services)
    if not in_force:
        return f"no problems; none of {len(services)} Services has a policy"
    have = "has a policy, which is" if in_force == 1 else "have a policy, all"
    return f"no problems; {in_force} of {len(services)} Services {have} in force"
