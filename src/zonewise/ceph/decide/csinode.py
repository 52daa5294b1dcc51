"""Topology keys in the driver's CSINode entry, kept in line with the node's labels. Pure.

kubelet writes the entry once, when the driver registers. If a node gains or loses a domain label later, the entry must
follow, or provisioning fails because a label is missing. The API server rejects changes to an entry; it can only be
removed and added again, which takes two writes. The first write stores the entry in an annotation, so a crash between
the two loses nothing.

Takeover labels are not listed here: provisioning requires every key of an entry from all nodes, and a key that only
some nodes have would exclude the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from enum import StrEnum
from typing import Any, Final, NamedTuple

from zonewise.api.names import CSI_DRIVER

REJOINING: Final = f"{CSI_DRIVER}/rejoining"
"""Annotation: the removed entry, until it is added again."""

Json = dict[str, Any]


class CsiNodeStep(StrEnum):
    LEAVE = "leave"
    JOIN = "join"
    CLEAR = "clear"


class CsiNodeChange(NamedTuple):
    """One write of the whole object. A `LEAVE` is followed by a `JOIN`."""

    step: CsiNodeStep
    body: Json


def next_change(csi_node: Json, keys: Iterable[str]) -> CsiNodeChange | None:
    """The write that gives the driver's entry these keys; None if it has them. `csi_node` is the whole object.

    Without an entry there is nothing to correct: kubelet has not registered the driver, or has unregistered it.
    """
    body = deepcopy(csi_node)
    topology_keys = sorted(keys)
    drivers: list[Json] = body.get("spec", {}).get("drivers") or []
    entry = next((driver for driver in drivers if driver.get("name") == CSI_DRIVER), None)
    saved_entry = body["metadata"].get("annotations", {}).get(REJOINING)
    if entry is not None:
        if sorted(entry.get("topologyKeys") or []) == topology_keys:
            return None if saved_entry is None else _cleared(body)
        body["spec"]["drivers"] = [driver for driver in drivers if driver is not entry]
        body["metadata"].setdefault("annotations", {})[REJOINING] = json.dumps(entry, sort_keys=True)
        return CsiNodeChange(CsiNodeStep.LEAVE, body)
    if saved_entry is None:
        return None
    try:
        entry = json.loads(saved_entry)
        entry["topologyKeys"] = topology_keys
    except (ValueError, TypeError):
        return _cleared(body)
    body.setdefault("spec", {})["drivers"] = [*drivers, entry]
    del body["metadata"]["annotations"][REJOINING]
    return CsiNodeChange(CsiNodeStep.JOIN, body)


def _cleared(body: Json) -> CsiNodeChange:
    del body["metadata"]["annotations"][REJOINING]
    return CsiNodeChange(CsiNodeStep.CLEAR, body)
