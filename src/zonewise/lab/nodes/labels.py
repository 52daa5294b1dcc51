"""The labels of every lab node, of either kind: where it is, in the words of Kubernetes and one of our own for racks."""

REGION = "lab"
ZONE = "topology.kubernetes.io/zone"
RACK = "zonewise.dev/rack"


def node_labels(name: str, zone: str, rack: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": REGION,
        ZONE: zone,
        RACK: rack,
    }
