"""Numba-compiled routing algorithms: the functions of `routing`, compiled once and cached on disk.

Every function of the listed modules is cloned with a namespace in which the functions it calls are compiled, so that
`routing` does not depend on numba. The cache is named after the sources: a changed line creates a new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, Final, NamedTuple

import numba
import numpy as np

from zonewise.routing.algorithms import Algorithm, blocks, heap, local, optimal, score, shared, sizing, weighted
from zonewise.routing.algorithms import workspace as vectors
from zonewise.routing.algorithms.blocks import Search, search_space
from zonewise.routing.algorithms.workspace import Workspace, new_workspace
from zonewise.simulator.cache import directory, sources_fingerprint
from zonewise.simulator.decide import kernels

SOURCES: Final = (heap, vectors, score, local, shared, weighted, blocks, sizing, optimal, kernels)
"""Modules whose functions work on plain vectors and can all be compiled."""

OPTIONS: dict[str, Any] = {
    "cache": True,
    "error_model": "numpy",  # no checks for division by zero, which does not occur
    "forceinline": True,
    "_nrt": False,  # no reference counting, as nothing allocates: four times as fast
}


NOT_INLINED: Final = (sizing.climb, sizing.settle)
"""Large functions with many callers: inlined everywhere, they would take minutes to compile."""


class CompiledMemory(NamedTuple):
    """The preallocated arrays of a compiled sweep."""

    work: Workspace
    search: Search
    traffic: Any


def memory(zones: int) -> CompiledMemory:
    return CompiledMemory(_arrays(new_workspace(zones)), _arrays(search_space(zones)), np.zeros(3 * zones))


def _arrays(lists: Any) -> Any:
    return type(lists)(*(np.array(vector, float if isinstance(vector[0], float) else np.int64) for vector in lists))


@cache
def sweeper(algorithm: Algorithm) -> Callable[..., None]:
    """`kernels.sweep` compiled for this algorithm."""
    namespace = _namespaces()[kernels.__name__] | {"run_algorithm": run_algorithm(algorithm)}
    compiled: Callable[..., None] = _clone(kernels.sweep, namespace, f"sweep_{algorithm}")
    return compiled


@cache
def run_algorithm(algorithm: Algorithm) -> Callable[..., int]:
    compiled: Callable[..., int] = _namespaces()[kernels.__name__][f"run_{algorithm.replace('-', '_')}"]
    return compiled


@cache
def compare() -> Callable[..., None]:
    compiled: Callable[..., None] = _namespaces()[kernels.__name__]["compare"]
    return compiled


@cache
def _namespaces() -> Mapping[str, dict[str, Any]]:
    """The globals of every source module, with compiled functions instead of the plain ones."""
    _choose_cache()
    spaces = {module.__name__: dict(vars(module)) for module in SOURCES}
    compiled = {
        plain: _clone(plain, spaces[module.__name__], plain.__name__)
        for module in SOURCES
        for plain in vars(module).values()
        if isinstance(plain, FunctionType) and plain.__module__ == module.__name__
    }
    for space in spaces.values():
        for name, value in space.items():
            if isinstance(value, FunctionType) and value in compiled:
                space[name] = compiled[value]
    return spaces


def _clone(plain: FunctionType | Callable[..., Any], namespace: dict[str, Any], name: str) -> Any:
    assert isinstance(plain, FunctionType)
    clone = FunctionType(plain.__code__, namespace, name, plain.__defaults__)
    clone.__qualname__ = name
    return numba.njit(clone, **OPTIONS | {"forceinline": plain not in NOT_INLINED})


def _choose_cache() -> None:
    """NUMBA_CACHE_DIR, or a directory named after all sources: numba only checks the age of one file."""
    if not os.environ.get("NUMBA_CACHE_DIR"):
        numba.config.CACHE_DIR = str(directory() / f"compiled-{sources_fingerprint()}")
