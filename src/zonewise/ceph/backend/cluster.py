"""Connections to Ceph clusters with librados, and the state of their pools.

Every call has a timeout, since without one a call into a dead zone never returns. Connections are shared by all
threads; one that is blocklisted by Ceph is replaced at the next use. Keys are never logged, and leave this module only
through `key`, for the mappers on nodes.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zonewise.ceph.backend.mgr import CephMgr
from zonewise.ceph.config import ClusterConfig, CsiConfig, CsiConfigFile
from zonewise.ceph.decide import ids, pool_state
from zonewise.ceph.decide.errors import CephCommandError, CsiError, GrpcCode, from_ceph
from zonewise.ceph.decide.ids import VolumeId
from zonewise.ceph.decide.model import PoolState
from zonewise.log import get_logger

if TYPE_CHECKING:
    import rados

_log = get_logger(__name__)

OP_TIMEOUT_SECONDS: Final = 15.0
CONNECT_TIMEOUT_SECONDS: Final = 10.0
_STATES_SECONDS: Final = 3.0  # maximum age of pool states
_REFRESH_SECONDS: Final = 1.5  # age at which they are refreshed in the background, so that no call has to wait
_MAX_CONNECTIONS: Final = 32
_CLOSE_SECONDS: Final = 10.0
_BROKEN: Final = frozenset({errno.ESHUTDOWN, errno.ENOTCONN, errno.ETIMEDOUT})


class CephCluster:
    def __init__(self, config: ClusterConfig, user: str, key: str, timeout_seconds: float = OP_TIMEOUT_SECONDS) -> None:
        self.config = config
        self.name = config.cluster
        self.user = user
        self.key = key
        self.is_broken = False
        self._lock = threading.RLock()
        self._states_lock = threading.Lock()
        self._fsid = ""
        self._ioctxs: dict[tuple[int, str], rados.Ioctx] = {}
        self._states: tuple[float, dict[str, PoolState]] = (float("-inf"), {})
        self._timeout_seconds = timeout_seconds
        self._rados = self._open_connection()
        self._mgr = CephMgr(lambda: self._open_connection(rados_mon_op_timeout="0"), timeout_seconds)

    def _open_connection(self, **overrides: str) -> Any:
        import rados  # noqa: PLC0415 - a system package, needed by the driver only

        seconds = str(math.ceil(self._timeout_seconds))  # Ceph accepts whole seconds only
        options = {
            **self.config.options,
            "mon_host": ",".join(self.config.monitors),
            "key": self.key,
            "keyring": "",
            "log_to_stderr": "false",  # librados would print invalid keys
            "err_to_stderr": "false",
            "log_file": "",
            "rados_osd_op_timeout": seconds,
            "rados_mon_op_timeout": seconds,
            "rbd_default_clone_format": "2",  # format 1 has to protect snapshots, and `auto` selects it on a new cluster
            "client_mount_timeout": str(math.ceil(min(CONNECT_TIMEOUT_SECONDS, self._timeout_seconds))),
            **overrides,
        }
        operation = f"connecting to cluster {self.name} as client.{self.user}"
        try:
            handle = rados.Rados(rados_id=self.user, conf=options)
        except Exception as error:
            raise from_ceph(error, operation) from error
        try:
            handle.connect()
        except rados.Error as error:
            handle.shutdown()
            number = getattr(error, "errno", None)
            if number in {errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOENT}:
                raise CsiError(
                    GrpcCode.UNAUTHENTICATED,
                    f"{operation}: Ceph refuses this user or key: check userID and userKey in the secret",
                ) from error
            raise from_ceph(error, operation) from error
        return handle

    @contextmanager
    def doing(self, operation: str) -> Iterator[None]:
        """Turns errors of Ceph's bindings into CsiErrors that name the operation."""
        try:
            yield
        except CsiError:
            raise
        except Exception as error:
            number = getattr(error, "errno", None)
            if number is None or not type(error).__module__.startswith(("rados", "rbd", "cephfs")):
                raise
            if abs(number) in _BROKEN:
                self.is_broken = self.is_broken or abs(number) == errno.ESHUTDOWN
                self.forget_states()
            raise from_ceph(error, operation) from error

    def ioctx(self, pool: str | int, namespace: str = "") -> Any:
        """For a pool by its current name or its id. Shared by all threads: never change its namespace or locator."""
        pool_id = pool if isinstance(pool, int) else self.pool_id(pool)
        with self._lock:
            context = self._ioctxs.get((pool_id, namespace)) if pool_id is not None else None
        if context is not None:
            return context
        with self.doing(f"opening pool {pool}"):
            context = self._rados.open_ioctx(pool) if pool_id is None else self._rados.open_ioctx2(pool_id)
            context.set_osdmap_full_try()  # a full pool then rejects writes but accepts deletions; otherwise both block
            if namespace:
                context.set_namespace(namespace)
        if pool_id is None:  # the pool was just created
            return context
        with self._lock:
            return self._ioctxs.setdefault((pool_id, namespace), context)

    def pool_id(self, pool: str) -> int | None:
        with self.doing(f"looking up pool {pool}"):
            pool_id = self._rados.pool_lookup(pool)
        return int(pool_id) if pool_id is not None else None

    def pool_name(self, pool_id: int) -> str | None:
        with self.doing(f"looking up pool {pool_id}"):
            try:
                name = self._rados.pool_reverse_lookup(pool_id)
            except Exception as error:
                if getattr(error, "errno", None) == errno.ENOENT:
                    return None
                raise
        return str(name) if name else None

    def require_pool(self, pool: str, parameter: str) -> int:
        pool_id = self.pool_id(pool)
        if pool_id is None:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, f"parameter {parameter}: cluster {self.name} has no pool {pool!r}"
            )
        return pool_id

    def pools(self) -> list[str]:
        with self.doing("listing pools"):
            return list(self._rados.list_pools())

    def mon(self, prefix: str, **arguments: Any) -> Any:
        """A monitor command; returns the decoded reply."""
        return self._command(self._rados.mon_command, prefix, arguments)

    def mgr(self, prefix: str, **arguments: Any) -> Any:
        return self._command(self._mgr.command, prefix, arguments)

    def _command(self, send: Callable[..., tuple[int, bytes, str]], prefix: str, arguments: dict[str, Any]) -> Any:
        text = json.dumps({"prefix": prefix, "format": "json", **arguments})
        with self.doing(prefix):
            code, output, message = send(text, b"", timeout=math.ceil(self._timeout_seconds))
        if code:
            raise from_ceph(CephCommandError(abs(code), message or f"code {code}"), prefix)
        try:
            return json.loads(output) if output.strip() else None
        except ValueError:
            return output.decode(errors="replace")

    def states(self, pools: Iterable[str]) -> Mapping[str, PoolState]:
        """States of these pools, a few seconds old at most; pools that do not exist are left out."""
        names = set(pools)
        read_at, states = self._states
        age = time.monotonic() - read_at
        if age > _STATES_SECONDS or not names <= states.keys():
            states = self._fresh_states(read_at)
        elif age > _REFRESH_SECONDS and not self._states_lock.locked():
            threading.Thread(target=self._refresh_states, args=(read_at,), name="pool-states", daemon=True).start()
        return {pool: states[pool] for pool in names if pool in states}

    def forget_states(self) -> None:
        self._states = (float("-inf"), {})

    def _fresh_states(self, older_than: float) -> dict[str, PoolState]:
        """One thread asks the monitors; concurrent callers wait for its result."""
        with self._states_lock:
            read_at, states = self._states
            return states if read_at > older_than else self._read_states()

    def _refresh_states(self, older_than: float) -> None:
        try:
            self._fresh_states(older_than)
        except Exception as error:  # noqa: BLE001 - the next call asks again and gets the error
            _log.debug("pool states not refreshed", cluster=self.name, error=str(error))

    def _read_states(self) -> dict[str, PoolState]:
        read_at = time.monotonic()
        dump = self.mon("osd dump")
        tree = self.mon("osd tree")
        rules = self.mon("osd crush rule dump")
        states = pool_state.pool_states(self.mon("df"), dump, tree, rules)
        self._states = (read_at, states)
        return states

    def option(self, name: str) -> str:
        """A librados option, from the configuration and the monitors."""
        with self.doing(f"reading option {name}"):
            return str(self._rados.conf_get(name))

    @property
    def rados(self) -> Any:
        return self._rados

    @property
    def fsid(self) -> str:
        if not self._fsid:
            with self.doing("reading the cluster's fsid"):
                self._fsid = str(self._rados.get_fsid())
        return self._fsid

    def require_own(self, volume_id: VolumeId) -> None:
        """Raises FAILED_PRECONDITION for a volume of another Ceph cluster that had the same name."""
        if volume_id.fsid and volume_id.fsid != ids.short_fsid(self.fsid):
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"{volume_id} was created in a Ceph cluster with fsid {volume_id.fsid}..., but cluster {self.name!r} has fsid "
                f"{self.fsid}: check its monitors in the driver's configuration",
            )

    @property
    def configuration(self) -> str:
        """A ceph.conf for other programs: without the key, and without timeouts."""
        options = {"mon_host": ",".join(self.config.monitors), **self.config.options}
        return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in options.items())

    def close(self) -> None:
        """With a timeout: the shutdown of librados may never return, and the process has to exit."""
        closing = threading.Thread(target=self._shut_down, name="shutdown", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            _log.warning("connection does not close, left open", cluster=self.name, user=self.user)

    def _shut_down(self) -> None:
        with self._states_lock, self._lock:
            for context in self._ioctxs.values():
                context.close()
            self._ioctxs.clear()
            self._mgr.close()
            self._rados.shutdown()


def _is_key(text: str) -> bool:
    """Base64 of type, time, length and that many bytes. librados would print an invalid key to stderr."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(decoded) > 12 and len(decoded) == 12 + int.from_bytes(decoded[10:12], "little")


class CephClusters:
    """Connections by cluster and credentials; the least recently used are dropped above a limit."""

    def __init__(self, configuration: CsiConfigFile, timeout_seconds: float = OP_TIMEOUT_SECONDS) -> None:
        self._configuration = configuration
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, ...], CephCluster] = OrderedDict()
        self._opening: dict[tuple[str, ...], threading.Lock] = {}

    @property
    def config(self) -> CsiConfig:
        return self._configuration.now()

    def connect(self, cluster: str, secrets: Mapping[str, str]) -> CephCluster:
        """With the request's secrets; without secrets as the driver's own user."""
        config = self._config_of(cluster)
        user = secrets.get("userID") or secrets.get("adminID") or ""
        key = secrets.get("userKey") or secrets.get("adminKey") or ""
        if not secrets:
            return self.own(cluster)
        if not user or not key:
            raise CsiError(GrpcCode.UNAUTHENTICATED, "the secret must have userID and userKey")
        if not _is_key(key.strip()):
            raise CsiError(
                GrpcCode.UNAUTHENTICATED,
                "userKey in the secret is not a Ceph key: use the output of `ceph auth get-key`",
            )
        return self._get(config, user.removeprefix("client."), key.strip())

    def own(self, cluster: str) -> CephCluster:
        config = self._config_of(cluster)
        if not config.user:
            raise CsiError(
                GrpcCode.UNAUTHENTICATED,
                f"the request has no secrets, and cluster {cluster!r} has no userID and keyFile in the driver's configuration",
            )
        try:
            key = Path(config.key_file).read_text().strip()
        except OSError as error:
            raise CsiError(
                GrpcCode.UNAUTHENTICATED, f"keyFile {config.key_file} of cluster {cluster!r}: {error.strerror}"
            ) from error
        return self._get(config, config.user.removeprefix("client."), key)

    def _config_of(self, cluster: str) -> ClusterConfig:
        config = self.config.clusters.get(cluster)
        if config is None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION, f"cluster {cluster!r} is not in the driver's configuration: add it there"
            )
        return config

    def _get(self, config: ClusterConfig, user: str, key: str) -> CephCluster:
        key_hash = hashlib.sha256(key.encode(errors="replace")).hexdigest()
        options = tuple(f"{name}={value}" for name, value in sorted(config.options.items()))
        connection_key = (config.cluster, user, key_hash, *config.monitors, *options)
        if (cluster := self._cached(connection_key)) is not None:
            return cluster
        with self._lock:
            opening = self._opening.setdefault(connection_key, threading.Lock())
        with opening:
            try:
                return self._cached(connection_key) or self._add(
                    connection_key, CephCluster(config, user, key, self._timeout_seconds)
                )
            finally:
                with self._lock:
                    self._opening.pop(connection_key, None)  # otherwise entries of wrong keys would stay for ever

    def _cached(self, connection_key: tuple[str, ...]) -> CephCluster | None:
        with self._lock:
            cluster = self._open.get(connection_key)
            if cluster is None or cluster.is_broken:
                return None
            self._open.move_to_end(connection_key)
            return cluster

    def _add(self, connection_key: tuple[str, ...], cluster: CephCluster) -> CephCluster:
        with self._lock:
            self._open[connection_key] = cluster
            while len(self._open) > _MAX_CONNECTIONS:
                self._open.popitem(last=False)  # garbage-collected once no call uses it
        return cluster

    def close(self) -> None:
        with self._lock:
            for cluster in self._open.values():
                cluster.close()
            self._open.clear()
