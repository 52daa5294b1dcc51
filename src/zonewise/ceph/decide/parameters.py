"""StorageClass parameters, parsed strictly: an unknown parameter is rejected with the closest known one. Pure.

Common to CSI drivers for Ceph are `clusterID`, `pool`, `dataPool`, `topologyConstrainedPools`, `imageFeatures` and
`fsName`. Our own are:

- `balance`: how a pool is chosen when no domain is preferred: `random` (uniform), `space` (weighted by free space) or `count`
  (weighted towards fewer volumes).
- `volumeBindingMode`: `Immediate`, for classes that bind immediately under a provisioner that passes topology all the same: CSI does
  not pass on the class's own field.
- `cloneDomain`: `source` keeps copies of volumes and snapshots in the pool of their source; `requested` puts them where the request
  asks, independent of their source before they are ready.
- `overcommit`: how many times the free space of a pool one volume may require; 0 for no limit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from zonewise.ceph.config import ClusterConfig, CsiConfig
from zonewise.ceph.decide.domains import Segments, short_name
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.topology import canonical_key, value_problem

LONGEST_VALUE: Final = 64 << 10
DEFAULT_OVERCOMMIT: Final = 10.0
HIERARCHY: Final = ("region", "zone")
"""Default short names of domain labels, widest first."""
NODE_PARAMETERS: Final = frozenset({"mounter", "mkfsOptions"})
"""Passed on to the node in the volume context."""

FEATURES: Final = frozenset({"layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling"})
_COMMON: Final = frozenset(
    {"type", "clusterID", "balance", "volumeBindingMode", "cloneDomain", "overcommit", "topologyConstrainedPools"}
)
_RBD: Final = frozenset({"pool", "dataPool", "imageFeatures"})
_CEPHFS: Final = frozenset({"fsName", "pool"})
_ORCHESTRATOR: Final = ("csi.storage.k8s.io/",)
E = TypeVar("E", bound=StrEnum)
_POOL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,127}")


class PoolBalance(StrEnum):
    RANDOM = "random"
    SPACE = "space"
    COUNT = "count"


class CloneDomain(StrEnum):
    SOURCE = "source"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True)
class PoolRule:
    """A pool and its domain; without segments it serves every domain."""

    pool: str
    data_pool: str = ""
    segments: Segments = ()


@dataclass(frozen=True, slots=True)
class StorageClassParameters:
    kind: VolumeKind
    cluster: str
    pool: str = (
        ""  # RBD: of the journal, and of images without topologyConstrainedPools. CephFS: the data pool likewise
    )
    rules: tuple[PoolRule, ...] = ()
    balance: PoolBalance = PoolBalance.RANDOM
    is_immediate: bool = False
    clone_domain: CloneDomain = CloneDomain.SOURCE
    overcommit: float = DEFAULT_OVERCOMMIT
    features: tuple[str, ...] = ()
    filesystem: str = ""
    group: str = "csi"
    hierarchy: tuple[str, ...] = HIERARCHY
    for_node: Mapping[str, str] = field(default_factory=dict, hash=False)


def parse_parameters(
    parameters: Mapping[str, str], config: CsiConfig, hierarchy: tuple[str, ...] = HIERARCHY
) -> StorageClassParameters:
    """Raises INVALID_ARGUMENT with the name of the wrong parameter."""
    own = {key: value for key, value in parameters.items() if not key.startswith(_ORCHESTRATOR)}
    for key, value in own.items():
        if len(key) > 256 or len(value) > LONGEST_VALUE:
            raise _wrong(key, f"has {len(value)} characters: the limit is {LONGEST_VALUE}")
    cluster = _cluster(own, config)
    kind = _kind(own)
    _check_known(own, kind)
    section = cluster.rbd if kind is VolumeKind.RBD else cluster.cephfs
    pool = _pool_name("pool", own.get("pool") or str(section.get("pool", "")))
    filesystem = own.get("fsName") or str(section.get("fsName", ""))
    if kind is VolumeKind.RBD and not pool:
        raise _wrong("pool", "is missing: set it to the pool of the journal")
    if kind is VolumeKind.CEPHFS and not filesystem:
        raise _wrong("fsName", "is missing: set it to the file system")
    return StorageClassParameters(
        kind=kind,
        cluster=cluster.cluster,
        pool=pool,
        rules=_rules(own, section, kind, pool),
        balance=_choice("balance", own, PoolBalance, PoolBalance.RANDOM),
        is_immediate=_is_immediate(own),
        clone_domain=_choice("cloneDomain", own, CloneDomain, CloneDomain.SOURCE),
        overcommit=_overcommit(own),
        features=_features(own),
        filesystem=_pool_name("fsName", filesystem),
        group=_pool_name("subvolumeGroup", str(section.get("subvolumeGroup", "csi"))),
        hierarchy=hierarchy,
        for_node={key: value for key, value in own.items() if key in NODE_PARAMETERS},
    )


def _cluster(parameters: Mapping[str, str], config: CsiConfig) -> ClusterConfig:
    name = parameters.get("clusterID", "")
    if not name and len(config.clusters) == 1:
        return next(iter(config.clusters.values()))
    if name not in config.clusters:
        known = ", ".join(sorted(config.clusters)) or "none"
        raise _wrong("clusterID", f"{_cut(name)!r} is not in the driver's configuration, which has {known}")
    return config.clusters[name]


def _kind(parameters: Mapping[str, str]) -> VolumeKind:
    word = parameters.get("type", "cephfs" if "fsName" in parameters else "rbd")
    if word not in {"rbd", "cephfs"}:
        raise _wrong("type", f"is {_cut(word)!r}; write rbd or cephfs")
    return VolumeKind.CEPHFS if word == "cephfs" else VolumeKind.RBD


def _check_known(parameters: Mapping[str, str], kind: VolumeKind) -> None:
    known = _COMMON | NODE_PARAMETERS | (_RBD if kind is VolumeKind.RBD else _CEPHFS)
    for key in parameters:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise _wrong(
                _cut(key), f"is not a parameter for {'RBD' if kind is VolumeKind.RBD else 'CephFS'} classes; {hint}"
            )


def _rules(
    parameters: Mapping[str, str], section: Mapping[str, Any], kind: VolumeKind, pool: str
) -> tuple[PoolRule, ...]:
    text = parameters.get("topologyConstrainedPools", "").strip()
    listed: Any = section.get("topologyConstrainedPools", [])
    if text:
        try:
            listed = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise _wrong("topologyConstrainedPools", f"is not valid JSON: {error}") from error
    if not isinstance(listed, list):
        raise _wrong("topologyConstrainedPools", "must be a list of pools")
    rules = tuple(_rule(entry, kind) for entry in listed)
    _check_labels(listed)
    if rules:
        return rules
    data_pool = _pool_name("dataPool", parameters.get("dataPool", ""))
    return (PoolRule(pool, data_pool),)  # CephFS: "" is the default data pool


def _rule(entry: Any, kind: VolumeKind) -> PoolRule:
    _object(entry, {"poolName", "dataPool", "domainSegments"}, "a pool")
    name = entry.get("poolName")
    if not isinstance(name, str) or not name:
        raise _wrong("topologyConstrainedPools", f"has a pool without 'poolName': {_cut(str(entry))}")
    data_pool = entry.get("dataPool", "")
    if not isinstance(data_pool, str) or (data_pool and kind is VolumeKind.CEPHFS):
        raise _wrong(
            "topologyConstrainedPools",
            f"pool {_cut(name)!r}: 'dataPool' must be the name of a pool, and is for RBD only",
        )
    listed = entry.get("domainSegments", [])
    if not isinstance(listed, list):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(name)!r}: 'domainSegments' must be a list")
    segments = tuple(_segment(segment, name) for segment in listed)
    if len({key for key, _ in segments}) < len(segments):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(name)!r} names one domain label twice")
    parameter = "topologyConstrainedPools"
    return PoolRule(_pool_name(parameter, name), _pool_name(parameter, data_pool), segments)


def _segment(entry: Any, pool: str) -> tuple[str, str]:
    _object(entry, {"domainLabel", "value"}, f"a domain of pool {_cut(pool)!r}")
    label, value = entry.get("domainLabel"), entry.get("value")
    if not (isinstance(label, str) and isinstance(value, str) and label and value):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(pool)!r}: a domain needs 'domainLabel' and 'value'")
    if problem := value_problem(value):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(pool)!r}: {_cut(problem)}")
    return short_name(label), value


def _check_labels(listed: list[Any]) -> None:
    """Labels that differ only in their prefix have the same short name."""
    labels: dict[str, str] = {}
    for entry in listed:
        for segment in entry.get("domainSegments", []):
            label = segment["domainLabel"]
            other = labels.setdefault(short_name(label), label)
            if "/" in label and "/" in other and canonical_key(label) != canonical_key(other):
                raise _wrong(
                    "topologyConstrainedPools",
                    f"{_cut(label)} and {_cut(other)} can't be told apart: they differ only before the slash",
                )


def _object(entry: Any, known: set[str], what: str) -> None:
    if not isinstance(entry, dict):
        raise _wrong("topologyConstrainedPools", f"{what} must be an object, not {_cut(str(entry))!r}")
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise _wrong("topologyConstrainedPools", f"{what} has the unknown key {_cut(str(key))!r}; {hint}")


def _is_immediate(parameters: Mapping[str, str]) -> bool:
    word = parameters.get("volumeBindingMode", "WaitForFirstConsumer")
    if word not in {"Immediate", "WaitForFirstConsumer"}:
        raise _wrong("volumeBindingMode", f"is {_cut(word)!r}; write Immediate or WaitForFirstConsumer")
    return word == "Immediate"


def _overcommit(parameters: Mapping[str, str]) -> float:
    text = parameters.get("overcommit", str(DEFAULT_OVERCOMMIT))
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < 1e9:
        raise _wrong("overcommit", f"is {_cut(text)!r}; write a number such as 10, or 0 for no limit")
    return ratio


def _features(parameters: Mapping[str, str]) -> tuple[str, ...]:
    features = tuple(word.strip() for word in parameters.get("imageFeatures", "").split(",") if word.strip())
    for word in features:
        if word not in FEATURES:
            raise _wrong("imageFeatures", f"has {_cut(word)!r}; known: {', '.join(sorted(FEATURES))}")
    if features and "layering" not in features:
        raise _wrong("imageFeatures", "lacks layering, which clones require")
    if features and "exclusive-lock" not in features:
        raise _wrong("imageFeatures", "lacks exclusive-lock, which Ceph needs to fence a disconnected node")
    return features


def _choice(key: str, parameters: Mapping[str, str], choices: type[E], default: E) -> E:
    text = parameters.get(key, default)
    if text not in set(choices):
        raise _wrong(key, f"is {_cut(text)!r}; write {' or '.join(choices)}")
    return choices(text)


def _pool_name(key: str, name: str) -> str:
    if name and not _POOL.fullmatch(name):
        raise _wrong(
            key, f"{_cut(name)!r} is not a valid name: use up to 128 letters, digits, '.', '_', ':', '+' and '-'"
        )
    return name


def _wrong(parameter: str, problem: str) -> CsiError:
    return CsiError(GrpcCode.INVALID_ARGUMENT, f"parameter {_cut(parameter)} {problem}")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
