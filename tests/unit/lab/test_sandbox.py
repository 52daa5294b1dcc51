"""Pod addresses: unique, and reused as late as possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide.podspec import PodMetadata, RunPod
from zonewise.lab.network.namespaces import NetworkError
from zonewise.lab.nodes import sandbox

ALL_INDEXES = set(range(1, 255))


@given(used=st.sets(st.integers(1, 254), max_size=253), last=st.integers(0, 254))
def test_free_index_is_found_if_there_is_one(used: set[int], last: int) -> None:
    assert sandbox.free_index(used, last) in ALL_INDEXES - used


def test_indexes_are_handed_out_in_rotation() -> None:
    assert sandbox.free_index({1, 2}, 3) == 4
    assert sandbox.free_index({254}, 254) == 1


def test_full_node_raises() -> None:
    with pytest.raises(NetworkError, match="all 254 pod addresses"):
        sandbox.free_index(ALL_INDEXES, 9)


def test_link_names_fit_the_kernel_limit() -> None:
    pods = [RunPod(metadata=PodMetadata(uid=uid)) for uid in ("5a0a1f6e-7b0a-4a9d-8f0c-6a7e0c2f1b3d", "x")]
    links = {sandbox.link_of(pod) for pod in pods}
    assert len(links) == 2
    assert all(len(link) <= 15 for link in links)
