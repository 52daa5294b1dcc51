"""The driver's entry in a node's CSINode: which topology keys provisioning asks this node for. Pure.

A kubelet writes the entry once, when the driver registers. When a node gets or loses a domain label later, the entry
must follow, or provisioning fails for want of a label. The API server lets nobody change an entry, only remove it and
make another, so that takes two writes; what is needed for the second is kept in an annotation by the first, so that
nothing is lost between them.

Takeovers are not said here: every key of an entry is asked of all nodes when a volume is provisioned, and a key that
only some nodes have would hide the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from enum import StrEnum
from typing import Any, Final, NamedTuple

from zonewise.api.names import CSI_DRIVER

REJOINING: Final = f"{CSI_DRIVER}/rejoining"
"""Annotation: the entry that was removed to be made anew."""

Json = dict[str, Any]


class CsiNodeStep(StrEnum):
    LEAVE = "leave"
    JOIN = "join"
    CLEAR = "clear"


class CsiNodeChange(NamedTuple):
    """One write: the whole object as it should be. A `LEAVE` is followed by a `JOIN`."""

    step: CsiNodeStep
    body: Json


def next_change(found: Json, keys: Iterable[str]) -> CsiNodeChange | None:
    """What to write so that the entry in `found`, a whole CSINode, has these keys; None when nothing is to be done.

    Without an entry there is nothing to correct: the kubelet has not registered the driver, or took it off.
    """
    body = deepcopy(found)
    wanted = sorted(keys)
    drivers: list[Json] = body.get("spec", {}).get("drivers") or []
    entry = next((driver for driver in drivers if driver.get("name") == CSI_DRIVER), None)
    kept = body["metadata"].get("annotations", {}).get(REJOINING)
    if entry is not None:
        if sorted(entry.get("topologyKeys") or []) == wanted:
            return None if kept is None else _cleared(body)
        body["spec"]["drivers"] = [driver for driver in drivers if driver is not entry]
        body["metadata"].setdefault("annotations", {})[REJOINING] = json.dumps(entry, sort_keys=True)
        return CsiNodeChange(CsiNodeStep.LEAVE, body)
    if kept is None:
        return None
    try:
        entry = json.loads(kept)
        entry["topologyKeys"] = wanted
    except (ValueError, TypeError):
        return _cleared(body)
    body.setdefault("spec", {})["drivers"] = [*drivers, entry]
    del body["metadata"]["annotations"][REJOINING]
    return CsiNodeChange(CsiNodeStep.JOIN, body)


def _cleared(body: Json) -> CsiNodeChange:
    del body["metadata"]["annotations"][REJOINING]
    return CsiNodeChange(CsiNodeStep.CLEAR, body)
