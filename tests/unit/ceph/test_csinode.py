"""The driver's entry in a CSINode: removed and made anew in two writes that may be far apart."""

from typing import Any

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.decide.csinode import REJOINING, CsiNodeStep, next_change

OTHER = {"name": "other.example", "nodeID": "n", "topologyKeys": ["x"]}


def csi_node(*drivers: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "n", "resourceVersion": "7", "annotations": annotations} if annotations else {"name": "n"}
    return {"metadata": metadata, "spec": {"drivers": list(drivers)}}


def entry(*keys: str) -> dict[str, Any]:
    return {"name": CSI_DRIVER, "nodeID": "n-1", "topologyKeys": list(keys), "allocatable": {"count": 40}}


def test_an_entry_that_is_right_or_that_nobody_made_is_left_alone() -> None:
    assert next_change(csi_node(OTHER, entry("b", "a")), ["a", "b"]) is None
    assert next_change(csi_node(OTHER), ["a"]) is None
    assert next_change({"metadata": {"name": "n"}, "spec": {}}, ["a"]) is None


def test_an_entry_follows_in_two_writes() -> None:
    found = csi_node(OTHER, entry("a"))
    leave = next_change(found, ["b", "a"])
    assert leave is not None
    assert leave.step is CsiNodeStep.LEAVE
    assert leave.body["spec"]["drivers"] == [OTHER]
    assert found == csi_node(OTHER, entry("a")), "what was read stays as it was"
    join = next_change(leave.body, ["b", "a"])
    assert join is not None
    assert join.step is CsiNodeStep.JOIN
    assert join.body["spec"]["drivers"] == [OTHER, entry("a", "b")]
    assert next_change(join.body, ["a", "b"]) is None


def test_what_the_kubelet_did_in_between_counts() -> None:
    leave = next_change(csi_node(entry("a")), ["b"])
    assert leave is not None
    leave.body["spec"]["drivers"] = [entry("b")]
    clear = next_change(leave.body, ["b"])
    assert clear is not None
    assert clear.step is CsiNodeStep.CLEAR
    assert clear.body == csi_node(entry("b")) | {"metadata": {"name": "n", "annotations": {}}}


def test_a_spoiled_note_is_removed() -> None:
    for spoiled in ("{", "[]", "7"):
        clear = next_change(csi_node(OTHER, **{REJOINING: spoiled}), ["b"])
        assert clear is not None
        assert clear.step is CsiNodeStep.CLEAR
        assert clear.body["metadata"]["annotations"] == {}
