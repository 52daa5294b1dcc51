"""The CSI configuration, as the config map has it and a mounted file shows it: which Ceph clusters there are. Pure but for `CsiConfigFile`.

    {"version": 2, "topology-takeover": {...},
     "clusters": [{"clusterID": "one", "monitors": ["10.0.0.1:6789"], "userID": "csi", "keyFile": "/etc/ceph/csi.key",
                   "rbd": {"pool": "csi-journal", "topologyConstrainedPools": [...]},
                   "cephFS": {"fsName": "csifs", "subvolumeGroup": "csi", "topologyConstrainedPools": [...]}}]}

Pools named here serve every class that names none itself: a class can't be changed, and this can, so a new domain is an edit here.
ListVolumes and GetCapacity carry no secrets, so they use `userID` and `keyFile`. A list in place of the document, as version 1 had
it, is read too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from zonewise.ceph.decide import ids
from zonewise.errors import UsageError
from zonewise.log import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    cluster: str
    monitors: tuple[str, ...]
    user: str = ""
    key_file: str = ""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)  # of ceph.conf, for clients
    rbd: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cephfs: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class CsiConfig:
    clusters: Mapping[str, ClusterConfig] = field(default_factory=dict)


_CLUSTER_KEYS = frozenset(
    {"clusterID", "monitors", "userID", "keyFile", "options", "rbd", "cephFS", "readAffinity", "nfs"}
)
_RBD_KEYS = frozenset({"pool", "topologyConstrainedPools"})
_CEPHFS_KEYS = frozenset({"fsName", "subvolumeGroup", "topologyConstrainedPools"})


def parse(text: str) -> CsiConfig:
    """UsageError names the cluster and the key that is wrong."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"the CSI configuration is no JSON: {error}") from error
    listed = document.get("clusters", []) if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise UsageError('the CSI configuration: "clusters" must be a list')
    clusters: dict[str, ClusterConfig] = {}
    for entry in listed:
        read = _cluster(entry)
        if read.cluster in clusters:
            raise UsageError(f"the CSI configuration names cluster {read.cluster!r} twice")
        clusters[read.cluster] = read
    return CsiConfig(clusters)


def _cluster(entry: Any) -> ClusterConfig:
    name = entry.get("clusterID") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not ids.is_cluster(name):
        raise UsageError(
            'the CSI configuration: every cluster needs a "clusterID" of 1 to 36 letters, digits, dashes and underscores'
        )
    where = f"the CSI configuration of cluster {name!r}"
    _known(entry, _CLUSTER_KEYS, where)
    monitors = entry.get("monitors", [])
    if not (isinstance(monitors, list) and monitors and all(isinstance(each, str) and each for each in monitors)):
        raise UsageError(f'{where}: "monitors" must be a list of addresses')
    options = entry.get("options", {})
    if not (isinstance(options, dict) and all(isinstance(value, str) for value in options.values())):
        raise UsageError(f'{where}: "options" must be names and values, all of them text')
    rbd, cephfs = entry.get("rbd", {}), entry.get("cephFS", {})
    for said, keys, what in ((rbd, _RBD_KEYS, "rbd"), (cephfs, _CEPHFS_KEYS, "cephFS")):
        if not isinstance(said, dict):
            raise UsageError(f"{where}: {what!r} must be an object")
        _known(said, keys, f"{where}, {what}")
    user, key_file = entry.get("userID", ""), entry.get("keyFile", "")
    if not isinstance(user, str) or not isinstance(key_file, str) or bool(user) != bool(key_file):
        raise UsageError(f'{where}: "userID" and "keyFile" go together')
    return ClusterConfig(name, tuple(monitors), user, key_file, options, rbd, cephfs)


def _known(said: Mapping[str, Any], keys: frozenset[str], where: str) -> None:
    unknown = sorted(set(said) - keys)
    if unknown:
        raise UsageError(f"{where}: unknown {unknown[0]!r}; known are {', '.join(sorted(keys))}")


class CsiConfigFile:
    """The file, read again when it has changed: a mounted config map is replaced by a rename."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._config = CsiConfig()
        self._complaint = ""
        self.now()

    def now(self) -> CsiConfig:
        """What can't be read raises at the start; later the last good one is kept until the file is right again."""
        with self._lock:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
                if stamp != self._stamp:
                    self._config = parse(self._path.read_text())
                    self._stamp = stamp
            except (OSError, UsageError) as error:
                if self._stamp is None:
                    raise
                if str(error) != self._complaint:
                    log.warning("configuration not read, the one before stays", path=str(self._path), error=str(error))
                self._complaint = str(error)
            return self._config
