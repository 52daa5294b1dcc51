"""Views of the core group: nodes, pods, services and what surrounds them."""

from __future__ import annotations

import msgspec

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource


class ObjectReference(View, frozen=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Condition(View, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class Taint(View, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeAddress(View, frozen=True):
    type: str = ""
    address: str = ""


class NodeSpec(View, frozen=True):
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeSystemInfo(View, frozen=True):
    """kube-proxy no longer says its own version; it is taken to be of the kubelet's, as both come with a node."""

    kubelet_version: str = ""


class NodeStatus(View, frozen=True):
    allocatable: dict[str, str] = {}
    node_info: NodeSystemInfo = NodeSystemInfo()
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Node(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerPort(View, frozen=True):
    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class Container(View, frozen=True):
    """Only init containers have a restart policy of their own; one that always restarts is a sidecar."""

    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None


class PodIP(View, frozen=True):
    ip: str = ""


class PodSpec(View, frozen=True):
    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodStatus(View, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    conditions: tuple[Condition, ...] = ()


class Pod(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ServicePort(View, frozen=True):
    name: str = ""
    protocol: str = "TCP"
    port: int = 0
    target_port: int | str = 0
    node_port: int = 0
    app_protocol: str | None = None


class ClientIPConfig(View, frozen=True):
    timeout_seconds: int = 10800


class SessionAffinityConfig(View, frozen=True):
    client_ip: ClientIPConfig = msgspec.field(default=ClientIPConfig(), name="clientIP")


class ServiceSpec(View, frozen=True):
    type: str = "ClusterIP"
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    external_ips: tuple[str, ...] = msgspec.field(default=(), name="externalIPs")
    external_name: str = ""
    ip_families: tuple[str, ...] = ()
    internal_traffic_policy: str = "Cluster"
    external_traffic_policy: str = ""
    traffic_distribution: str | None = None
    topology_keys: tuple[str, ...] = ()
    publish_not_ready_addresses: bool = False
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig = SessionAffinityConfig()
    load_balancer_source_ranges: tuple[str, ...] = ()
    health_check_node_port: int = 0


class LoadBalancerIngress(View, frozen=True):
    ip: str = ""
    ip_mode: str = "VIP"


class LoadBalancerStatus(View, frozen=True):
    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(View, frozen=True):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class Namespace(View, frozen=True):
    metadata: Metadata = Metadata()


class ConfigMap(View, frozen=True):
    metadata: Metadata = Metadata()
    data: dict[str, str] = {}


class Secret(View, frozen=True):
    """Values arrive base64-encoded; a log line that shows the object shows only their names."""

    metadata: Metadata = Metadata()
    type: str = ""
    data: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data)})"


class ServiceAccount(View, frozen=True):
    metadata: Metadata = Metadata()


CONFIG_MAPS = Resource(view=ConfigMap, kind="ConfigMap", plural="configmaps")
NAMESPACES = Resource(view=Namespace, kind="Namespace", plural="namespaces", namespaced=False)
NODES = Resource(view=Node, kind="Node", plural="nodes", namespaced=False)
PODS = Resource(view=Pod, kind="Pod", plural="pods")
SECRETS = Resource(view=Secret, kind="Secret", plural="secrets")
SERVICES = Resource(view=Service, kind="Service", plural="services")
SERVICE_ACCOUNTS = Resource(view=ServiceAccount, kind="ServiceAccount", plural="serviceaccounts")
