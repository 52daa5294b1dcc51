"""Addresses of pods: each once, and rested before they are used again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide.podspec import PodMetadata, RunPod
from zonewise.lab.network.namespaces import NetworkError
from zonewise.lab.nodes import sandbox

EVERYONE = set(range(1, 255))


@given(taken=st.sets(st.integers(1, 254), max_size=253), last=st.integers(0, 254))
def test_a_free_address_is_found_whenever_there_is_one(taken: set[int], last: int) -> None:
    assert sandbox.free_index(taken, last) in EVERYONE - taken


def test_the_address_freed_last_is_given_last() -> None:
    assert sandbox.free_index({1, 2}, 3) == 4
    assert sandbox.free_index({254}, 254) == 1


def test_a_full_node_says_so() -> None:
    with pytest.raises(NetworkError, match="all 254 pod addresses"):
        sandbox.free_index(EVERYONE, 9)


def test_links_fit_the_kernels_limit() -> None:
    pods = [RunPod(metadata=PodMetadata(uid=uid)) for uid in ("5a0a1f6e-7b0a-4a9d-8f0c-6a7e0c2f1b3d", "x")]
    links = {sandbox.link_of(pod) for pod in pods}
    assert len(links) == 2
    assert all(len(link) <= 15 for link in links)
