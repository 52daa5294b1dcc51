"""The driver's entry in a CSINode: removed and added again in two writes, which may be far apart."""

from typing import Any

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.decide.csinode import REJOINING, CsiNodeStep, next_change

OTHER = {"name": "other.example", "nodeID": "n", "topologyKeys": ["x"]}


def csi_node(*drivers: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "n", "resourceVersion": "7", "annotations": annotations} if annotations else {"name": "n"}
    return {"metadata": metadata, "spec": {"drivers": list(drivers)}}


def entry(*keys: str) -> dict[str, Any]:
    return {"name": CSI_DRIVER, "nodeID": "n-1", "topologyKeys": list(keys), "allocatable": {"count": 40}}


def test_correct_or_missing_entry_needs_no_change() -> None:
    assert next_change(csi_node(OTHER, entry("b", "a")), ["a", "b"]) is None
    assert next_change(csi_node(OTHER), ["a"]) is None
    assert next_change({"metadata": {"name": "n"}, "spec": {}}, ["a"]) is None


def test_changed_keys_need_two_writes() -> None:
    before = csi_node(OTHER, entry("a"))
    leave = next_change(before, ["b", "a"])
    assert leave is not None
    assert leave.step is CsiNodeStep.LEAVE
    assert leave.body["spec"]["drivers"] == [OTHER]
    assert before == csi_node(OTHER, entry("a")), "the argument is not changed"
    join = next_change(leave.body, ["b", "a"])
    assert join is not None
    assert join.step is CsiNodeStep.JOIN
    assert join.body["spec"]["drivers"] == [OTHER, entry("a", "b")]
    assert next_change(join.body, ["a", "b"]) is None


def test_entry_added_by_kubelet_in_between_is_kept() -> None:
    leave = next_change(csi_node(entry("a")), ["b"])
    assert leave is not None
    leave.body["spec"]["drivers"] = [entry("b")]
    clear = next_change(leave.body, ["b"])
    assert clear is not None
    assert clear.step is CsiNodeStep.CLEAR
    assert clear.body == csi_node(entry("b")) | {"metadata": {"name": "n", "annotations": {}}}


def test_invalid_annotation_is_removed() -> None:
    for invalid in ("{", "[]", "7"):
        clear = next_change(csi_node(OTHER, **{REJOINING: invalid}), ["b"])
        assert clear is not None
        assert clear.step is CsiNodeStep.CLEAR
        assert clear.body["metadata"]["annotations"] == {}
