"""Writes that the holder of a service account's token may try, and which of them its admission policy must let through."""

from __future__ import annotations

from typing import Any, NamedTuple

from support.install.deployed import SYSTEM
from zonewise.api.names import DELETION_COST, GRANTED, MANAGED_BY, ROUTING_STATE, SERVICE_NAME, STOCK_MANAGER

Json = dict[str, Any]

MERGE, STRATEGIC, JSON = (f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch"))
SHOP = "/api/v1/namespaces/shop"
SERVICE, POD, CLAIM = f"{SHOP}/services/web", f"{SHOP}/pods/web", f"{SHOP}/persistentvolumeclaims/data"
SYSTEM_POD = "/api/v1/namespaces/kube-system/pods/dns"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
SETS = "/apis/apps/v1/namespaces/shop/statefulsets"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/shop/events"
SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
VOLUMES = "/api/v1/persistentvolumes"
CONFIG = f"/api/v1/namespaces/{SYSTEM}/configmaps/zonewise-csi-config"
CONTENTS = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
BUDGET_STATUS = "/apis/zonewise.dev/v1alpha1/namespaces/shop/topologydisruptionbudgets/web/status"
DRIVER = "ceph.zonewise.dev"
SERIES = {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "0c8a5a6e-0000-0000-0000-000000000000"}


class Attempt(NamedTuple):
    """PUT sends the live object with `body` merged into it."""

    what: str
    path: str
    body: Any
    method: str = MERGE
    """A content type of PATCH, or POST, PUT, DELETE."""


def metadata(**fields: Any) -> Json:
    return {"metadata": fields}


def named(name: str, **fields: Any) -> Json:
    return {"metadata": {"name": name}, **fields}


def at(path: str, value: Any, op: str = "replace") -> list[Json]:
    return [{"op": op, "path": path, "value": value}]


def event(name: str, reporter: str, namespace: str = "shop") -> Json:
    regarding = {"apiVersion": "v1", "kind": "Service", "namespace": namespace, "name": "web"}
    return named(
        name,
        eventTime="2026-01-01T00:00:00.000000Z",
        type="Normal",
        reason="Test",
        action="Test",
        regarding=regarding,
        reportingController=reporter,
        reportingInstance="test",
    )


def of_metadata(what: str, path: str, *, method: str = MERGE) -> list[Attempt]:
    """Metadata that no account owns."""
    return [
        Attempt(f"{what}: a label", path, metadata(labels={"app": "other"}), method),
        Attempt(f"{what}: another annotation", path, metadata(annotations={"example.com/note": "x"}), method),
        Attempt(
            f"{what}: a foreign annotation removed", path, metadata(annotations={"example.com/kept": None}), method
        ),
        Attempt(f"{what}: a finalizer", path, metadata(finalizers=["example.com/never"]), method),
        Attempt(f"{what}: an owner", path, metadata(ownerReferences=[OWNER]), method),
    ]


def common(lease: str, reporter: str) -> tuple[list[Attempt], list[Attempt]]:
    """Leases and events: what passes, and what does not."""
    passes = [
        Attempt("its lease", LEASES, named(lease), "POST"),
        Attempt("its event", EVENTS, event("mine", reporter), "POST"),
    ]
    fails = [
        Attempt("another lease", LEASES, named("zonewise-other"), "POST"),
        Attempt("an event in another's name", EVENTS, event("mine", "kubelet"), "POST"),
        Attempt("an event of another", f"{EVENTS}/foreign", {"series": SERIES}),
    ]
    return passes, fails


NOTE = metadata(annotations={ROUTING_STATE: "{}"})
SERVICE_PASSES = [
    Attempt("the routing annotation", SERVICE, NOTE),
    Attempt("the routing annotation removed", f"{SHOP}/services/noted", metadata(annotations={ROUTING_STATE: None})),
    Attempt("the first annotation", f"{SHOP}/services/bare", NOTE),
]
SERVICE_FAILS = [
    *of_metadata("Service", SERVICE),
    Attempt("the selector", SERVICE, {"spec": {"selector": {"app": "thief"}}}),
    Attempt("externalIPs", SERVICE, {"spec": {"externalIPs": ["192.0.2.1"]}}),
    Attempt("the type", SERVICE, {"spec": {"type": "NodePort"}}),
    Attempt("a port", SERVICE, at("/spec/ports/0/targetPort", 22), JSON),
    Attempt("the selector beside the annotation", SERVICE, NOTE | {"spec": {"selector": None}}),
]
SLICE, MIRRORED = f"{SLICES}/web-1", f"{SLICES}/mirrored"
HINTS = {"forZones": [{"name": "zone-a"}]}


def all_hints(count: int) -> list[Json]:
    return [operation for index in range(count) for operation in at(f"/endpoints/{index}/hints", HINTS, "add")]


def large_slice(count: int) -> Json:
    """As many endpoints as a slice can have, with all their fields."""
    reference = {"kind": "Pod", "namespace": "shop", "name": "web", "uid": OWNER["uid"]}
    conditions = {"ready": True, "serving": True, "terminating": False}
    fields = {"conditions": conditions, "nodeName": "n", "zone": "zone-a", "targetRef": reference}
    endpoints = [{"addresses": [f"10.1.{index // 250}.{index % 250}"], **fields} for index in range(count)]
    return endpoint_slice("large", STOCK_MANAGER) | {"endpoints": endpoints}


LEASE_AND_EVENT = common("zonewise-endpointslices", "zonewise.dev/endpointslices")
OVERLAY = (
    [
        *SERVICE_PASSES,
        Attempt("hints", SLICE, at("/endpoints/0/hints", HINTS, "add"), JSON),
        Attempt("hints of 1,000 endpoints", f"{SLICES}/large", all_hints(1000), JSON),
        Attempt("hints removed", SLICE, at("/endpoints/1/hints", None, "remove"), JSON),
        *LEASE_AND_EVENT[0],
    ],
    [
        *SERVICE_FAILS,
        *of_metadata("slice", SLICE),
        Attempt("addresses", SLICE, at("/endpoints/0/addresses", ["192.0.2.1"]), JSON),
        Attempt("conditions", SLICE, at("/endpoints/0/conditions", {"ready": False}), JSON),
        Attempt("a node", SLICE, at("/endpoints/0/nodeName", "other", "add"), JSON),
        Attempt("a zone", SLICE, at("/endpoints/0/zone", "other", "add"), JSON),
        Attempt("a target", SLICE, at("/endpoints/0/targetRef", {"kind": "Pod", "name": "x"}, "add"), JSON),
        Attempt("an endpoint more", SLICE, at("/endpoints/-", {"addresses": ["192.0.2.1"]}, "add"), JSON),
        Attempt("an endpoint less", SLICE, at("/endpoints/0", None, "remove"), JSON),
        Attempt("all endpoints", SLICE, {"endpoints": None}),
        Attempt("ports", SLICE, {"ports": [{"name": "", "port": 22, "protocol": "TCP"}]}),
        Attempt("hints of another manager's slice", MIRRORED, at("/endpoints/0/hints", HINTS, "add"), JSON),
        *LEASE_AND_EVENT[1],
    ],
)


def endpoint_slice(name: str, manager: str, service: str = "web") -> Json:
    labels = {MANAGED_BY: manager, SERVICE_NAME: service}
    endpoints = [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": True}},
        {"addresses": ["10.0.0.2"], "hints": HINTS, "nodeName": "n"},
    ]
    body = {"addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}]}
    return {"metadata": {"name": name, "labels": labels, "annotations": {"example.com/kept": ""}}, **body}


OWN = (
    [
        *SERVICE_PASSES,
        Attempt("a slice", SLICES, endpoint_slice("web-2", STOCK_MANAGER), "POST"),
        Attempt("its addresses", SLICE, at("/endpoints/0/addresses", ["10.0.0.3"]), JSON),
        Attempt("its end", SLICE, None, "DELETE"),
        *LEASE_AND_EVENT[0],
    ],
    [
        *SERVICE_FAILS,
        Attempt("a slice of another manager", SLICES, endpoint_slice("web-2", "example.com"), "POST"),
        Attempt("a slice of no manager", SLICES, named("web-2", addressType="IPv4", endpoints=[]), "POST"),
        Attempt("addresses of another manager's", MIRRORED, at("/endpoints/0/addresses", ["192.0.2.1"]), JSON),
        Attempt("another manager's slice taken", MIRRORED, metadata(labels={MANAGED_BY: STOCK_MANAGER})),
        Attempt("a slice given away", SLICE, metadata(labels={MANAGED_BY: "example.com"})),
        Attempt("another manager's slice deleted", MIRRORED, None, "DELETE"),
        *LEASE_AND_EVENT[1],
    ],
)


def certificates(account: str, configuration: str, path: str) -> tuple[list[Attempt], list[Attempt]]:
    """Webhook configuration and Secret."""
    first = "/webhooks/0"
    service, digits = f"{first}/clientConfig/service", "0123456789abcdef" * 4
    elsewhere = [*at(f"{first}/clientConfig", {"url": "https://192.0.2.1/"})]
    everything = [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}]
    bundle = at(f"{first}/clientConfig/caBundle", "eA==", "add")
    token = metadata(name=account, annotations={"kubernetes.io/service-account.name": "zonewise-csi-controller"})
    passes = [
        Attempt("caBundle", configuration, bundle, JSON),
        Attempt("a secret path segment", configuration, at(f"{service}/path", f"{path}/{digits}"), JSON),
        Attempt("both", configuration, bundle + at(f"{service}/path", f"{path}/{digits}"), JSON),
        Attempt("its Secret", SECRETS, named(account), "POST"),
    ]
    fails = [
        *of_metadata("configuration", configuration),
        Attempt("a foreign URL", configuration, elsewhere, JSON),
        Attempt("all at once", configuration, elsewhere + at(f"{first}/rules", everything) + bundle, JSON),
        Attempt("rules", configuration, at(f"{first}/rules", everything), JSON),
        Attempt("one more rule", configuration, at(f"{first}/rules/-", everything[0], "add"), JSON),
        Attempt("operations", configuration, at(f"{first}/rules/0/operations", ["*"]), JSON),
        Attempt("failurePolicy", configuration, at(f"{first}/failurePolicy", "Fail"), JSON),
        Attempt("timeoutSeconds", configuration, at(f"{first}/timeoutSeconds", 30), JSON),
        Attempt("namespaceSelector", configuration, at(f"{first}/namespaceSelector", {}), JSON)
        if account == "zonewise-guard"
        else Attempt("objectSelector", configuration, at(f"{first}/objectSelector", {}), JSON),
        Attempt("matchConditions", configuration, at(f"{first}/matchConditions", NEVER, "add"), JSON),
        Attempt("its name", configuration, at(f"{first}/name", "other.zonewise.dev"), JSON),
        Attempt("no webhook", configuration, {"webhooks": []}),
        Attempt("the record of who applied it", configuration, metadata(managedFields=[{}])),
        Attempt("that record beside caBundle", configuration, bundle + at("/metadata/managedFields", [{}]), JSON),
        Attempt("no list", configuration, {"webhooks": None}),
        Attempt("another Service", configuration, at(f"{service}/name", "thief"), JSON),
        Attempt("another namespace", configuration, at(f"{service}/namespace", "shop"), JSON),
        Attempt("another port", configuration, at(f"{service}/port", 8443), JSON),
        *(
            Attempt(f"path {wrong}", configuration, at(f"{service}/path", wrong), JSON)
            for wrong in (
                "/",
                "/other",
                f"/other/{digits}",
                f"{path}/short",
                f"{path}/{'g' * 64}",
                f"{path}/{digits}0",
                f"{path}/x/{digits}",
                f"/x{path}/{digits}",
            )
        ),
        Attempt("another Secret", SECRETS, named("zonewise-csi-ceph"), "POST"),
        Attempt("a token", SECRETS, token | {"type": "kubernetes.io/service-account-token"}, "POST"),
    ]
    return passes, fails


NEVER = [{"name": "never", "expression": "false"}]


MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/zonewise-overlay"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zonewise-disruption"
CONFIGURATIONS = (MUTATING, VALIDATING)
WEBHOOK = certificates("zonewise-webhook", MUTATING, "/endpointslices")
GUARD = certificates("zonewise-guard", VALIDATING, "/deletes")
GUARD[1].append(Attempt("one webhook less", VALIDATING, at("/webhooks/0", None, "remove"), JSON))
BOTH_NOTES = metadata(annotations={GRANTED: "x", DELETION_COST: "-1"})
IMAGE = {"spec": {"containers": [{"name": "main", "image": "thief"}]}}
ON_DELETE, ROLLING = f"{SETS}/db/status", f"{SETS}/rolling/status"
MOVED = {"status": {"currentRevision": "db-2"}}
DISRUPTION_COMMON = common("zonewise-disruption", "zonewise.dev/disruption")
DISRUPTION = (
    [
        Attempt("its annotations", POD, BOTH_NOTES),
        Attempt("the first annotations", SYSTEM_POD, BOTH_NOTES),
        Attempt("its annotations removed", f"{SHOP}/pods/granted", metadata(annotations={GRANTED: None})),
        Attempt("currentRevision", ON_DELETE, MOVED),
        Attempt("an eviction", f"{SYSTEM_POD}/eviction", named("dns"), "POST"),
        *DISRUPTION_COMMON[0],
    ],
    [
        *of_metadata("pod", POD),
        Attempt("the image of a pod", POD, IMAGE, STRATEGIC),
        Attempt("the image of a system pod", SYSTEM_POD, IMAGE, STRATEGIC),
        Attempt("the image beside the annotations", POD, BOTH_NOTES | IMAGE, STRATEGIC),
        Attempt("a deadline", POD, {"spec": {"activeDeadlineSeconds": 1}}),
        Attempt("a toleration", POD, at("/spec/tolerations/-", {"operator": "Exists"}, "add"), JSON),
        Attempt("replicas", ON_DELETE, {"status": {"replicas": 0, "currentRevision": "db-2"}}),
        Attempt("conditions", ON_DELETE, MOVED | {"status": {"conditions": [{"type": "x", "status": "True"}]}}),
        Attempt("another revision", ON_DELETE, {"status": {"currentRevision": "db-0"}}),
        Attempt("updateRevision", ON_DELETE, {"status": {"currentRevision": "db-0", "updateRevision": "db-0"}}),
        Attempt("an annotation by status", ON_DELETE, MOVED | metadata(annotations={"zonewise.dev/update": "Evict"})),
        Attempt("a label by status", ON_DELETE, MOVED | metadata(labels={"app": "other"})),
        Attempt("currentRevision of a stock rollout", ROLLING, MOVED),
        *DISRUPTION_COMMON[1],
    ],
)


def volume(name: str, **source: Any) -> Json:
    return named(name, spec={"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source})


HOST_PATH = {"hostPath": {"path": "/"}}
CLONE = "provisioner.storage.kubernetes.io/cloning-protection"
CSI = (
    [
        Attempt("a volume", VOLUMES, volume("v", csi={"driver": DRIVER, "volumeHandle": "v"}), "POST"),
        Attempt("its volume", f"{VOLUMES}/ours", metadata(annotations={"x/y": "z"})),
        Attempt("its volume deleted", f"{VOLUMES}/ours", None, "DELETE"),
        Attempt("the clone finalizer", CLAIM, metadata(finalizers=["kubernetes.io/pvc-protection", CLONE]), "PUT"),
        Attempt("the selected node", CLAIM, metadata(annotations={"volume.kubernetes.io/selected-node": "n"}), "PUT"),
        Attempt("the size of a claim", f"{CLAIM}/status", {"status": {"capacity": {"storage": "2Gi"}}}),
        Attempt("the takeover map", CONFIG, {"data": {"topology-takeover": '{"zone=a": ["zone=b"]}'}}),
        Attempt("the automatic entries", CONFIG, metadata(annotations={f"{DRIVER}/automatic": "[]"})),
        Attempt("a snapshot's content", f"{CONTENTS}/ours", metadata(annotations={"x/y": "z"})),
        Attempt("a sidecar's lease", LEASES, named("external-resizer-ceph-zonewise-dev"), "POST"),
        Attempt("its lease", LEASES, named("zonewise-csi"), "POST"),
    ],
    [
        Attempt("a volume of the host", VOLUMES, volume("v", **HOST_PATH), "POST"),
        Attempt("another driver's volume", VOLUMES, volume("v", csi={"driver": "x", "volumeHandle": "v"}), "POST"),
        Attempt("a foreign volume", f"{VOLUMES}/foreign", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        Attempt("a foreign volume deleted", f"{VOLUMES}/foreign", None, "DELETE"),
        *of_metadata("claim", CLAIM, method="PUT"),
        Attempt("the size of a claim", CLAIM, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, "PUT"),
        *of_metadata("claim by status", f"{CLAIM}/status"),
        Attempt("the protection of a claim by status", f"{CLAIM}/status", metadata(finalizers=[])),
        Attempt("another finalizer", CLAIM, metadata(finalizers=[CLONE, "example.com/never"]), "PUT"),
        Attempt("the protection of a claim", CLAIM, metadata(finalizers=[]), "PUT"),
        *of_metadata("configuration", CONFIG),
        Attempt("the monitors", CONFIG, {"data": {"config.json": "{}"}}),
        Attempt("the map removed, so that all may be written", CONFIG, {"data": {"topology-takeover": None}}),
        Attempt("binary data", CONFIG, {"binaryData": {"x": "eA=="}}),
        Attempt("a foreign snapshot's content", f"{CONTENTS}/foreign", metadata(annotations={"x/y": "z"})),
        Attempt("a foreign content taken", f"{CONTENTS}/foreign", {"spec": {"driver": DRIVER}}),
        Attempt("another program's new lease", LEASES, named("zonewise-endpointslices"), "POST"),
        Attempt("another program's lease", f"{LEASES}/zonewise-held", {"spec": {"holderIdentity": "thief"}}),
        Attempt("another program's lease deleted", f"{LEASES}/zonewise-held", None, "DELETE"),
    ],
)
