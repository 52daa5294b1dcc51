"""Every label, annotation, Lease, field manager and object name that users or other programs see, once.

Stable names keep their meaning in all 0.x releases; `docs/stability.md` lists them. Internal names may change with a
release that says so in the changelog: they are read only by programs of the same version, or for one version back.
"""

from typing import Final

# Kubernetes' own labels of nodes. Stable.
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
HOSTNAME: Final = "kubernetes.io/hostname"
BETA_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION: Final = "failure-domain.beta.kubernetes.io/region"

# What a Service asks of routing: annotations. Stable.
TOPOLOGY_KEYS: Final = "zonewise.dev/topology-keys"
SAME_NODE: Final = "endpointslice.kubernetes.io/same-node"
SAME_ZONE: Final = "endpointslice.kubernetes.io/same-zone"
SAME_REGION: Final = "endpointslice.kubernetes.io/same-region"
OLD_HINTS: Final = "service.kubernetes.io/topology-aware-hints"
TOPOLOGY_MODE: Final = "service.kubernetes.io/topology-mode"
ALGORITHM: Final = "zonewise.dev/algorithm"
STARTING_THRESHOLD: Final = "zonewise.dev/starting-threshold"
PADDING: Final = "zonewise.dev/padding"
OVERLOAD_THRESHOLD: Final = "zonewise.dev/overload-threshold"
DRAIN_ZONE: Final = "zonewise.dev/drain-zone"  # also on a Namespace and on nodes

# What a Service says to proxies: labels. Stable.
PROXY_NAME_LABEL: Final = "service.kubernetes.io/service-proxy-name"
PROXY_NAME: Final = "zonewise"
HEADLESS_LABEL: Final = "service.kubernetes.io/headless"

# How a Service is routed: its annotation, written by the controller. Stable.
ROUTING_STATE: Final = "zonewise.dev/routing"

# Slices: whose they are and who consumes them. Stable.
SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
STOCK_MANAGER: Final = "endpointslice-controller.k8s.io"  # kept in mode own, too: consumers look for it
TRIGGER_TIME: Final = "endpoints.kubernetes.io/last-change-trigger-time"
CONSUMER: Final = "zonewise.dev/consumer"
CONSUMER_ALL: Final = "zonewise-all"
CONSUMER_SHARED: Final = "zonewise-shared"
# Slices: what one version tells the next. Internal.
STARTED: Final = "zonewise.dev/started"  # label keys of the domains whose preference has started
WEIGHTS: Final = "zonewise.dev/weights"
# Hints for endpoints of a drained zone: no zone or node has this name, so no client is sent there. Internal.
DRAINED: Final = "zonewise-drained"  # the other endpoints follow a preference
NO_NODE: Final = "zonewise-no-node"  # beside endpoints that only their node uses: no node keeps to this one
DRAINED_EVENLY: Final = "zonewise-drained-even"  # the other endpoints serve everyone; no memory of a preference

# Workloads and pods under a TopologyDisruptionBudget: annotations. Stable.
UPDATE: Final = "zonewise.dev/update"
PARTITION: Final = "zonewise.dev/partition"  # ordinals below it keep their revision
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
# What the leader promises a pod. Internal.
GRANTED: Final = "zonewise.dev/granted"  # the pod's own uid: its controller may delete it
RESERVED: Final = "zonewise.dev/reserved"  # on an Eviction whose sender has charged the pod: the time of the entry

# Metrics over TLS. Stable.
METRICS_READER: Final = (
    "zonewise-metrics-reader"  # the ClusterRole, and the ServiceAccount whose tokens our own tools use
)
METRICS_AUDIENCE: Final = "zonewise-metrics"  # tokens for it open nothing but metrics
METRICS_TOKEN_HEADER: Final = "X-Zonewise-Token"  # noqa: S105 - for requests that an API server forwards

# The Ceph CSI driver. Stable.
CSI_DRIVER: Final = "ceph.zonewise.dev"
CSI_TOPOLOGY_PREFIX: Final = f"topology.{CSI_DRIVER}/"
CSI_TAKEOVER_PREFIX: Final = f"takeover.{CSI_DRIVER}/"  # `zone.eu-1a` follows, on a node that serves that domain
CSI_CONFIG_MAP: Final = "zonewise-csi-config"

# Installed objects. Stable.
API_VERSION: Final = "zonewise.dev/v1alpha1"
SYSTEM_NAMESPACE: Final = "zonewise-system"
APP_NAME_LABEL: Final = "app.kubernetes.io/name"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"  # `zonewise`, on every object of an install
INSTANCE_LABEL: Final = "zonewise.dev/instance"  # the namespace of the install
APP_PROXY: Final = "zonewise-proxy"
APP_DNS: Final = "zonewise-dns"

# Admission configurations. Stable.
OVERLAY_CONFIGURATION: Final = "zonewise-overlay"
DISRUPTION_CONFIGURATION: Final = "zonewise-disruption"
DELETE_POLICY: Final = "zonewise-deletes"
AGGREGATE_LABEL: Final = "zonewise.dev/aggregate-to-disruption"  # on a ClusterRole that reads scales of other kinds
DISRUPTION_LABEL: Final = "zonewise.dev/disruption"  # on a Namespace: `unguarded` exempts it

# Leases of leaders. Stable.
SLICES_LEASE: Final = "zonewise-endpointslices"
DISRUPTION_LEASE: Final = "zonewise-disruption"
CSI_LEASE: Final = "zonewise-csi"

# Field managers, as `kubectl get --show-managed-fields` shows them. Stable.
FIELD_MANAGER: Final = "zonewise"
OVERLAY_FIELD_MANAGER: Final = "zonewise-overlay"
DISRUPTION_FIELD_MANAGER: Final = "zonewise-disruption"
INSTALL_FIELD_MANAGER: Final = "zonewise-install"

# Reporting controllers of events. Stable.
SLICES_REPORTER: Final = "zonewise.dev/endpointslices"
DISRUPTION_REPORTER: Final = "zonewise.dev/disruption"
CSI_REPORTER: Final = "zonewise.dev/csi"
