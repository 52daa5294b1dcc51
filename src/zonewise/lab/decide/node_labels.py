"""Labels of lab nodes of either kind, real or simulated: Kubernetes' topology labels, and one of our own for racks."""

from zonewise.api.names import HOSTNAME, REGION, ZONE

LAB_REGION = "lab"
RACK = "zonewise.dev/rack"


def node_labels(name: str, zone: str, rack: str) -> dict[str, str]:
    return {
        HOSTNAME: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        REGION: LAB_REGION,
        ZONE: zone,
        RACK: rack,
    }
