"""What a StorageClass says, read strictly: a word we don't know is refused with what was probably meant. Pure.

Known to CSI drivers of Ceph are `clusterID`, `pool`, `dataPool`, `topologyConstrainedPools`, `imageFeatures` and `fsName`. Ours are

- `balance`: how a domain is chosen when none is asked for: `random` (all alike), `space` (by free space) or `count` (fewer volumes, likelier).
- `volumeBindingMode`: `Immediate`, for classes that bind immediately under a provisioner that passes topology all the same:
  CSI does not say what the class's own field says.
- `cloneDomain`: `source` keeps copies of volumes and snapshots in the pool of what they are copied from; `requested` puts them where
  the request asks, independent of their source before they are ready.
- `overcommit`: how many times its free space a pool may be asked for by one volume; 0 for no limit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from zonewise.ceph.config import ClusterConfig, CsiConfig
from zonewise.ceph.decide.domains import Segments, short_name
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.topology import canonical_key, value_problem

LONGEST_VALUE = 64 << 10
DEFAULT_OVERCOMMIT = 10.0
HIERARCHY = ("region", "zone")
"""Short names of domain labels, the widest first, where the driver was not told its domain labels."""
NODE_PARAMETERS = frozenset({"mounter", "mkfsOptions"})
"""Passed on to the node in the volume context, unread."""

FEATURES = frozenset({"layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling"})
_OURS = frozenset(
    {"type", "clusterID", "balance", "volumeBindingMode", "cloneDomain", "overcommit", "topologyConstrainedPools"}
)
_RBD = frozenset({"pool", "dataPool", "imageFeatures"})
_CEPHFS = frozenset({"fsName", "pool"})
_ORCHESTRATOR = ("csi.storage.k8s.io/",)
E = TypeVar("E", bound=StrEnum)
_POOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,127}")


class PoolBalance(StrEnum):
    RANDOM = "random"
    SPACE = "space"
    COUNT = "count"


class CloneDomain(StrEnum):
    SOURCE = "source"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True)
class PoolRule:
    """A pool and the domain it has affinity to; without segments it serves every domain."""

    pool: str
    data_pool: str = ""
    segments: Segments = ()


@dataclass(frozen=True, slots=True)
class StorageClassParameters:
    kind: VolumeKind
    cluster: str
    pool: str = ""  # RBD: of the journal, and of images where no pool has a domain. CephFS: a data pool, likewise
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


def read(
    parameters: Mapping[str, str], config: CsiConfig, hierarchy: tuple[str, ...] = HIERARCHY
) -> StorageClassParameters:
    """The class, or INVALID_ARGUMENT that names the parameter."""
    said = {key: value for key, value in parameters.items() if not key.startswith(_ORCHESTRATOR)}
    for key, value in said.items():
        if len(key) > 256 or len(value) > LONGEST_VALUE:
            raise _wrong(key, f"has {len(value)} characters, and {LONGEST_VALUE} are allowed")
    cluster = _cluster(said, config)
    kind = _kind(said)
    _check_known(said, kind)
    section = cluster.rbd if kind is VolumeKind.RBD else cluster.cephfs
    pool = _pool_name("pool", said.get("pool") or str(section.get("pool", "")))
    filesystem = said.get("fsName") or str(section.get("fsName", ""))
    if kind is VolumeKind.RBD and not pool:
        raise _wrong("pool", "is missing: it names the pool of the journal")
    if kind is VolumeKind.CEPHFS and not filesystem:
        raise _wrong("fsName", "is missing: it names the file system")
    return StorageClassParameters(
        kind=kind,
        cluster=cluster.cluster,
        pool=pool,
        rules=_rules(said, section, kind, pool),
        balance=_choice("balance", said, PoolBalance, PoolBalance.RANDOM),
        is_immediate=_is_immediate(said),
        clone_domain=_choice("cloneDomain", said, CloneDomain, CloneDomain.SOURCE),
        overcommit=_overcommit(said),
        features=_features(said),
        filesystem=_pool_name("fsName", filesystem),
        group=_pool_name("subvolumeGroup", str(section.get("subvolumeGroup", "csi"))),
        hierarchy=hierarchy,
        for_node={key: value for key, value in said.items() if key in NODE_PARAMETERS},
    )


def _cluster(said: Mapping[str, str], config: CsiConfig) -> ClusterConfig:
    name = said.get("clusterID", "")
    if not name and len(config.clusters) == 1:
        return next(iter(config.clusters.values()))
    if name not in config.clusters:
        known = ", ".join(sorted(config.clusters)) or "none"
        raise _wrong("clusterID", f"{_cut(name)!r} is in no configuration; configured: {known}")
    return config.clusters[name]


def _kind(said: Mapping[str, str]) -> VolumeKind:
    word = said.get("type", "cephfs" if "fsName" in said else "rbd")
    if word not in {"rbd", "cephfs"}:
        raise _wrong("type", f"is {_cut(word)!r}; write rbd or cephfs")
    return VolumeKind.CEPHFS if word == "cephfs" else VolumeKind.RBD


def _check_known(said: Mapping[str, str], kind: VolumeKind) -> None:
    known = _OURS | NODE_PARAMETERS | (_RBD if kind is VolumeKind.RBD else _CEPHFS)
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise _wrong(
                _cut(key), f"is no parameter of a class for {'RBD' if kind is VolumeKind.RBD else 'CephFS'}; {hint}"
            )


def _rules(said: Mapping[str, str], section: Mapping[str, Any], kind: VolumeKind, pool: str) -> tuple[PoolRule, ...]:
    text = said.get("topologyConstrainedPools", "").strip()
    listed: Any = section.get("topologyConstrainedPools", [])
    if text:
        try:
            listed = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise _wrong("topologyConstrainedPools", f"is no JSON: {error}") from error
    if not isinstance(listed, list):
        raise _wrong("topologyConstrainedPools", "must be a list of pools")
    rules = tuple(_rule(entry, kind) for entry in listed)
    _check_labels(listed)
    if rules:
        return rules
    data_pool = _pool_name("dataPool", said.get("dataPool", ""))
    return (PoolRule(pool, data_pool),)  # CephFS: "" is the file system's own choice


def _rule(entry: Any, kind: VolumeKind) -> PoolRule:
    _object(entry, {"poolName", "dataPool", "domainSegments"}, "a pool")
    name = entry.get("poolName")
    if not isinstance(name, str) or not name:
        raise _wrong("topologyConstrainedPools", f"has a pool without 'poolName': {_cut(str(entry))}")
    data_pool = entry.get("dataPool", "")
    if not isinstance(data_pool, str) or (data_pool and kind is VolumeKind.CEPHFS):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(name)!r}: 'dataPool' is a pool's name, and for RBD only")
    listed = entry.get("domainSegments", [])
    if not isinstance(listed, list):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(name)!r}: 'domainSegments' must be a list")
    segments = tuple(_segment(each, name) for each in listed)
    if len({key for key, _ in segments}) < len(segments):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(name)!r} names one domain label twice")
    where = "topologyConstrainedPools"
    return PoolRule(_pool_name(where, name), _pool_name(where, data_pool), segments)


def _segment(entry: Any, pool: str) -> tuple[str, str]:
    _object(entry, {"domainLabel", "value"}, f"a domain of pool {_cut(pool)!r}")
    label, value = entry.get("domainLabel"), entry.get("value")
    if not (isinstance(label, str) and isinstance(value, str) and label and value):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(pool)!r}: a domain needs 'domainLabel' and 'value'")
    if problem := value_problem(value):
        raise _wrong("topologyConstrainedPools", f"pool {_cut(pool)!r}: {_cut(problem)}")
    return short_name(label), value


def _check_labels(listed: list[Any]) -> None:
    """Two labels that only differ before the slash would be taken for one."""
    seen: dict[str, str] = {}
    for entry in listed:
        for segment in entry.get("domainSegments", []):
            label = segment["domainLabel"]
            other = seen.setdefault(short_name(label), label)
            if "/" in label and "/" in other and canonical_key(label) != canonical_key(other):
                raise _wrong("topologyConstrainedPools", f"{_cut(label)} and {_cut(other)} can't be told apart")


def _object(entry: Any, known: set[str], what: str) -> None:
    if not isinstance(entry, dict):
        raise _wrong("topologyConstrainedPools", f"{what} must be an object, not {_cut(str(entry))!r}")
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise _wrong("topologyConstrainedPools", f"{what} has the unknown key {_cut(str(key))!r}; {hint}")


def _is_immediate(said: Mapping[str, str]) -> bool:
    word = said.get("volumeBindingMode", "WaitForFirstConsumer")
    if word not in {"Immediate", "WaitForFirstConsumer"}:
        raise _wrong("volumeBindingMode", f"is {_cut(word)!r}; write Immediate or WaitForFirstConsumer")
    return word == "Immediate"


def _overcommit(said: Mapping[str, str]) -> float:
    text = said.get("overcommit", str(DEFAULT_OVERCOMMIT))
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < 1e9:
        raise _wrong("overcommit", f"is {_cut(text)!r}; write a number such as 10, or 0 for no limit")
    return ratio


def _features(said: Mapping[str, str]) -> tuple[str, ...]:
    features = tuple(word.strip() for word in said.get("imageFeatures", "").split(",") if word.strip())
    for word in features:
        if word not in FEATURES:
            raise _wrong("imageFeatures", f"has {_cut(word)!r}; known are {', '.join(sorted(FEATURES))}")
    if features and "layering" not in features:
        raise _wrong("imageFeatures", "lacks layering, without which there are no clones")
    if features and "exclusive-lock" not in features:
        raise _wrong("imageFeatures", "lacks exclusive-lock, by which Ceph shuts out a node that was cut off")
    return features


def _choice(key: str, said: Mapping[str, str], choices: type[E], default: E) -> E:
    text = said.get(key, default)
    if text not in set(choices):
        raise _wrong(key, f"is {_cut(text)!r}; write {' or '.join(choices)}")
    return choices(text)


def _pool_name(key: str, name: str) -> str:
    if name and not _POOL.fullmatch(name):
        raise _wrong(key, f"{_cut(name)!r} is no name: letters, digits, '.', '_', ':', '+' and '-', up to 128")
    return name


def _wrong(parameter: str, what: str) -> CsiError:
    return CsiError(GrpcCode.INVALID_ARGUMENT, f"parameter {_cut(parameter)} {what}")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
