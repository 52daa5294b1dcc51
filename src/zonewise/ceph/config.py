"""Driver configuration: the Ceph clusters, from a mounted config map. Pure except for `CsiConfigFile`.

    {"version": 2, "topology-takeover": {...},
     "clusters": [{"clusterID": "one", "monitors": ["10.0.0.1:6789"], "userID": "csi", "keyFile": "/etc/ceph/csi.key",
                   "rbd": {"pool": "csi-journal", "topologyConstrainedPools": [...]},
                   "cephFS": {"fsName": "csifs", "subvolumeGroup": "csi", "topologyConstrainedPools": [...]}}]}

Pools in the configuration serve every StorageClass that names none: a class is immutable, so a new domain is added
here. ListVolumes and GetCapacity carry no secrets, so they use `userID` and `keyFile`. A plain list of clusters, as in
version 1, is accepted, too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from zonewise.ceph.decide import ids
from zonewise.errors import UsageError
from zonewise.log import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    cluster: str
    monitors: tuple[str, ...]
    user: str = ""
    key_file: str = ""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)  # client options, as in ceph.conf
    rbd: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cephfs: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class CsiConfig:
    clusters: Mapping[str, ClusterConfig] = field(default_factory=dict)


_CLUSTER_KEYS: Final = frozenset(
    {"clusterID", "monitors", "userID", "keyFile", "options", "rbd", "cephFS", "readAffinity", "nfs"}
)
_RBD_KEYS: Final = frozenset({"pool", "topologyConstrainedPools"})
_CEPHFS_KEYS: Final = frozenset({"fsName", "subvolumeGroup", "topologyConstrainedPools"})


def parse(text: str) -> CsiConfig:
    """Raises UsageError with the cluster and the wrong key."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"the CSI configuration is not valid JSON: {error}") from error
    listed = document.get("clusters", []) if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise UsageError('the CSI configuration: "clusters" must be a list')
    clusters: dict[str, ClusterConfig] = {}
    for entry in listed:
        cluster = _cluster(entry)
        if cluster.cluster in clusters:
            raise UsageError(f"the CSI configuration has cluster {cluster.cluster!r} twice")
        clusters[cluster.cluster] = cluster
    return CsiConfig(clusters)


def _cluster(entry: Any) -> ClusterConfig:
    name = entry.get("clusterID") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not ids.is_cluster_id(name):
        raise UsageError(
            'the CSI configuration: every cluster needs a "clusterID" of 1 to 36 letters, digits, dashes and underscores'
        )
    where = f"the CSI configuration of cluster {name!r}"
    _check_keys(entry, _CLUSTER_KEYS, where)
    monitors = entry.get("monitors", [])
    if not (
        isinstance(monitors, list) and monitors and all(isinstance(monitor, str) and monitor for monitor in monitors)
    ):
        raise UsageError(f'{where}: "monitors" must be a list of addresses')
    options = entry.get("options", {})
    if not (isinstance(options, dict) and all(isinstance(value, str) for value in options.values())):
        raise UsageError(f'{where}: "options" must map names to strings')
    rbd, cephfs = entry.get("rbd", {}), entry.get("cephFS", {})
    for section, keys, what in ((rbd, _RBD_KEYS, "rbd"), (cephfs, _CEPHFS_KEYS, "cephFS")):
        if not isinstance(section, dict):
            raise UsageError(f"{where}: {what!r} must be an object")
        _check_keys(section, keys, f"{where}, {what}")
    user, key_file = entry.get("userID", ""), entry.get("keyFile", "")
    if not isinstance(user, str) or not isinstance(key_file, str) or bool(user) != bool(key_file):
        raise UsageError(f'{where}: "userID" and "keyFile" must be set together')
    return ClusterConfig(name, tuple(monitors), user, key_file, options, rbd, cephfs)


def _check_keys(section: Mapping[str, Any], keys: frozenset[str], where: str) -> None:
    unknown = sorted(set(section) - keys)
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(keys))}")


class CsiConfigFile:
    """Reads the file again when it has changed; a mounted config map is replaced by a rename."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._config = CsiConfig()
        self._last_error = ""
        self.now()

    def now(self) -> CsiConfig:
        """An invalid file raises at the start; later the last valid configuration stays in force."""
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
                if str(error) != self._last_error:
                    _log.warning("configuration invalid, keeping the last one", path=str(self._path), error=str(error))
                self._last_error = str(error)
            return self._config
