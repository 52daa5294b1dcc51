"""The algorithms of `routing`, compiled: the very same functions, translated to machine code once and kept in a cache.

Every function of the listed modules is cloned with a namespace in which the functions it calls are the compiled ones,
so `routing` itself never learns of numba. The cache is named after the sources: a changed line makes a new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np

from zonewise.routing.algorithms import Algorithm, blocks, heap, local, optimal, score, shared, sizing, weighted
from zonewise.routing.algorithms import workspace as vectors
from zonewise.routing.algorithms.blocks import Search, search_space
from zonewise.routing.algorithms.workspace import Workspace, workspace
from zonewise.simulator.cache import directory, sources_fingerprint
from zonewise.simulator.decide import kernels

SOURCES = (heap, vectors, score, local, shared, weighted, blocks, sizing, optimal, kernels)
"""Modules of functions on plain vectors, all of which can be compiled."""

OPTIONS: dict[str, Any] = {
    "cache": True,
    "error_model": "numpy",  # no check for division by zero: nothing divides by it
    "forceinline": True,
    "_nrt": False,  # nothing allocates, so no array is counted: four times as fast
}


CALLED = (sizing.climb, sizing.settle)
"""Large functions that many call: inlined everywhere, they would take minutes to compile."""


class CompiledMemory(NamedTuple):
    """What a compiled sweep works in."""

    work: Workspace
    search: Search
    traffic: Any


def memory(zones: int) -> CompiledMemory:
    return CompiledMemory(_arrays(workspace(zones)), _arrays(search_space(zones)), np.zeros(3 * zones))


def _arrays(lists: Any) -> Any:
    return type(lists)(*(np.array(vector, float if isinstance(vector[0], float) else np.int64) for vector in lists))


@cache
def sweeper(algorithm: Algorithm) -> Callable[..., None]:
    """`kernels.sweep` with this algorithm's judge in it."""
    namespace = _namespaces()[kernels.__name__] | {"judge": judge(algorithm)}
    made: Callable[..., None] = _clone(kernels.sweep, namespace, f"sweep_{algorithm}")
    return made


@cache
def judge(algorithm: Algorithm) -> Callable[..., int]:
    judges = _namespaces()[kernels.__name__]
    found: Callable[..., int] = judges[f"judge_{algorithm.replace('-', '_')}"]
    return found


@cache
def compare() -> Callable[..., None]:
    found: Callable[..., None] = _namespaces()[kernels.__name__]["compare"]
    return found


@cache
def _namespaces() -> Mapping[str, dict[str, Any]]:
    """The globals of every source module, with compiled functions in place of the plain ones."""
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
    return numba.njit(clone, **OPTIONS | {"forceinline": plain not in CALLED})


def _choose_cache() -> None:
    """Outside the tree, unless the user said where; numba by itself looks only at the time of one file."""
    if not os.environ.get("NUMBA_CACHE_DIR"):
        place = directory() / f"compiled-{sources_fingerprint()}"
        numba.config.CACHE_DIR = str(place)
