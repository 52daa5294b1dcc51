"""kwok stages for delayed readiness and delayed deletion, controlled by pod annotations.

kwok reads these stages in addition to the shipped ones; a stage with a weight takes precedence over one without.
"""

from pathlib import Path
from typing import Any

import yaml

from zonewise.lab.build import binaries

READY_AFTER = "test/ready-after"
"""Duration for which the pod is Running but not ready, such as "500ms"."""
GONE_AFTER = "test/gone-after"
"""Duration for which the pod is terminating."""
STAY_UNREADY = "test/stay-unready"
"""The pod does not become ready (again); in a template only together with READY_AFTER."""

Stage = dict[str, Any]

_NOW_READY = """
{{ $now := Now }}
conditions:
- {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Ready}
- {lastTransitionTime: {{ $now | Quote }}, status: "True", type: ContainersReady}
"""


def write_stages(path: Path) -> Path:
    shipped = yaml.safe_load_all(binaries.find(binaries.DEFAULT_VERSION).stages.read_text())
    ready = next(stage for stage in shipped if stage["metadata"]["name"] == "pod-ready")
    path.write_text(yaml.safe_dump_all([_started(ready), _ready_late(), _deleted_late()]))
    return path


def _started(ready: Stage) -> Stage:
    """Containers run, but none is ready."""
    template = ready["spec"]["next"]["statusTemplate"]
    for kind in ("Ready", "ContainersReady"):
        template = template.replace(f'status: "True"\n  type: {kind}\n', f'status: "False"\n  type: {kind}\n')
    conditions = [_not_terminating(), _is(".status.phase", "Pending"), _annotation(READY_AFTER, "Exists")]
    return _stage("pod-start", conditions, {"statusTemplate": template.replace("ready: true", "ready: false")})


def _ready_late() -> Stage:
    unready = {"key": '.status.conditions.[] | select( .type == "Ready" ) | .status', "operator": "NotIn"}
    conditions = [_not_terminating(), _is(".status.phase", "Running"), unready | {"values": ["True"]}]
    annotations = [_annotation(READY_AFTER, "Exists"), _annotation(STAY_UNREADY, "DoesNotExist")]
    return _stage("pod-ready-late", [*conditions, *annotations], {"statusTemplate": _NOW_READY}, READY_AFTER)


def _deleted_late() -> Stage:
    conditions = [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}, _annotation(GONE_AFTER, "Exists")]
    return _stage("pod-delete-late", conditions, {"delete": True}, GONE_AFTER)


def _stage(name: str, conditions: list[Stage], after: Stage, delay: str = "") -> Stage:
    spec: Stage = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchExpressions": conditions}}
    if delay:
        duration = {"expressionFrom": f'.metadata.annotations["{delay}"]'}
        spec["delay"] = {"durationMilliseconds": 0, "durationFrom": duration}
    kind = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}}
    return kind | {"spec": spec | {"weight": 1, "next": after}}


def _not_terminating() -> Stage:
    return {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}


def _is(key: str, value: str) -> Stage:
    return {"key": key, "operator": "In", "values": [value]}


def _annotation(name: str, operator: str) -> Stage:
    return {"key": f'.metadata.annotations["{name}"]', "operator": operator}
