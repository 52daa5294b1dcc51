"""A connection to a Ceph cluster with one user's key, and what the cluster says about its pools.

The door to librados: every call has a time limit, since without one a call into a dead zone never returns. Connections are kept and
shared by all threads; one that Ceph has shut out (blocklisted) or that lost its monitors is replaced at the next use. Keys are never
logged and never leave this module but through `key`, for the mappers on nodes.
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
from typing import TYPE_CHECKING, Any

from zonewise.ceph.backend.mgr import CephMgr
from zonewise.ceph.config import ClusterConfig, CsiConfig, CsiConfigFile
from zonewise.ceph.decide import ids, pool_state
from zonewise.ceph.decide.errors import Answered, CsiError, GrpcCode, from_ceph
from zonewise.ceph.decide.ids import VolumeId
from zonewise.ceph.decide.model import PoolState
from zonewise.log import get_logger

if TYPE_CHECKING:
    import rados

log = get_logger(__name__)

OP_TIMEOUT_SECONDS = 15.0
CONNECT_TIMEOUT_SECONDS = 10.0
_STATES_SECONDS = 3.0  # how old what is known about pools may be
_AHEAD_SECONDS = 1.5  # when it is asked for again, beside the calls, so that none has to wait for it
_MOST_CONNECTIONS = 32
_CLOSE_SECONDS = 10.0
_BROKEN = frozenset({errno.ESHUTDOWN, errno.ENOTCONN, errno.ETIMEDOUT})


class CephCluster:
    def __init__(self, config: ClusterConfig, user: str, key: str, timeout_seconds: float = OP_TIMEOUT_SECONDS) -> None:
        self.config = config
        self.name = config.cluster
        self.user = user
        self.key = key
        self.is_broken = False
        self._lock = threading.RLock()
        self._asking = threading.Lock()
        self._fsid = ""
        self._contexts: dict[tuple[int, str], rados.Ioctx] = {}
        self._states: tuple[float, dict[str, PoolState]] = (float("-inf"), {})
        self._timeout_seconds = timeout_seconds
        self._rados = self._connected()
        self._manager = CephMgr(lambda: self._connected(rados_mon_op_timeout="0"), timeout_seconds)

    def _connected(self, **different: str) -> Any:
        import rados  # noqa: PLC0415 - a binding of the system's: only the driver needs it

        seconds = str(math.ceil(self._timeout_seconds))  # Ceph takes whole ones only
        options = {
            **self.config.options,
            "mon_host": ",".join(self.config.monitors),
            "key": self.key,
            "keyring": "",
            "log_to_stderr": "false",  # librados would write keys that it can't read
            "err_to_stderr": "false",
            "log_file": "",
            "rados_osd_op_timeout": seconds,
            "rados_mon_op_timeout": seconds,
            "rbd_default_clone_format": "2",  # the first format has to protect snapshots, and `auto` means it for a new Ceph
            "client_mount_timeout": str(math.ceil(min(CONNECT_TIMEOUT_SECONDS, self._timeout_seconds))),
            **different,
        }
        doing = f"connecting to cluster {self.name} as client.{self.user}"
        try:
            handle = rados.Rados(rados_id=self.user, conf=options)
        except Exception as error:
            raise from_ceph(error, doing) from error
        try:
            handle.connect()
        except rados.Error as error:
            handle.shutdown()
            number = getattr(error, "errno", None)
            if number in {errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOENT}:
                raise CsiError(
                    GrpcCode.UNAUTHENTICATED,
                    f"{doing}: Ceph refuses this user or key; look at the secret's userID and userKey",
                ) from error
            raise from_ceph(error, doing) from error
        return handle

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Errors of the bindings that come out of the block become CsiErrors that say what was being done."""
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
            raise from_ceph(error, what) from error

    def ioctx(self, pool: str | int, namespace: str = "") -> Any:
        """Shared by all threads: never change its namespace or locator. Of the pool that has this name now, or this number."""
        number = pool if isinstance(pool, int) else self.pool_id(pool)
        with self._lock:
            found = self._contexts.get((number, namespace)) if number is not None else None
        if found is not None:
            return found
        with self.doing(f"opening pool {pool}"):
            opened = self._rados.open_ioctx(pool) if number is None else self._rados.open_ioctx2(number)
            opened.set_osdmap_full_try()  # a full pool refuses what would fill it, and lets go of the rest: else both wait
            if namespace:
                opened.set_namespace(namespace)
        if number is None:  # it was made at this moment
            return opened
        with self._lock:
            return self._contexts.setdefault((number, namespace), opened)

    def pool_id(self, pool: str) -> int | None:
        with self.doing(f"looking up pool {pool}"):
            number = self._rados.pool_lookup(pool)
        return int(number) if number is not None else None

    def pool_name(self, number: int) -> str | None:
        with self.doing(f"looking up pool {number}"):
            try:
                name = self._rados.pool_reverse_lookup(number)
            except Exception as error:
                if getattr(error, "errno", None) == errno.ENOENT:
                    return None
                raise
        return str(name) if name else None

    def require_pool(self, pool: str, parameter: str) -> int:
        number = self.pool_id(pool)
        if number is None:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, f"parameter {parameter}: cluster {self.name} has no pool {pool!r}"
            )
        return number

    def pools(self) -> list[str]:
        with self.doing("listing pools"):
            return list(self._rados.list_pools())

    def mon(self, prefix: str, **arguments: Any) -> Any:
        """A command of the monitors, its answer decoded."""
        return self._command(self._rados.mon_command, prefix, arguments)

    def mgr(self, prefix: str, **arguments: Any) -> Any:
        return self._command(self._manager.command, prefix, arguments)

    def _command(self, send: Callable[..., tuple[int, bytes, str]], prefix: str, arguments: dict[str, Any]) -> Any:
        text = json.dumps({"prefix": prefix, "format": "json", **arguments})
        with self.doing(prefix):
            code, output, said = send(text, b"", timeout=math.ceil(self._timeout_seconds))
        if code:
            raise _refused(code, prefix, said)
        try:
            return json.loads(output) if output.strip() else None
        except ValueError:
            return output.decode(errors="replace")

    def states(self, pools: Iterable[str]) -> Mapping[str, PoolState]:
        """What is known about these pools, a few seconds old at most; those that do not exist are not in it."""
        wanted = set(pools)
        taken, known = self._states
        age = time.monotonic() - taken
        if age > _STATES_SECONDS or not wanted <= known.keys():
            known = self._fresh_states(taken)
        elif age > _AHEAD_SECONDS and not self._asking.locked():
            threading.Thread(target=self._ask_ahead, args=(taken,), name="pool-states", daemon=True).start()
        return {pool: known[pool] for pool in wanted if pool in known}

    def forget_states(self) -> None:
        self._states = (float("-inf"), {})

    def _fresh_states(self, seen: float) -> dict[str, PoolState]:
        """One thread asks, those that come meanwhile wait for its answer."""
        with self._asking:
            taken, known = self._states
            return known if taken > seen else self._read_states()

    def _ask_ahead(self, seen: float) -> None:
        try:
            self._fresh_states(seen)
        except Exception as error:  # noqa: BLE001 - who needs an answer asks again, and is told
            log.debug("pools not asked for", cluster=self.name, error=str(error))

    def _read_states(self) -> dict[str, PoolState]:
        taken = time.monotonic()
        dump = self.mon("osd dump")
        tree = self.mon("osd tree")
        rules = self.mon("osd crush rule dump")
        known = pool_state.read(self.mon("df"), dump, tree, rules)
        self._states = (taken, known)
        return known

    def option(self, name: str) -> str:
        """Of librados, as this client has it from the configuration and the monitors."""
        with self.doing(f"reading option {name}"):
            return str(self._rados.conf_get(name))

    @property
    def rados(self) -> Any:
        return self._rados

    @property
    def fsid(self) -> str:
        if not self._fsid:
            with self.doing("asking for the cluster's id"):
                self._fsid = str(self._rados.get_fsid())
        return self._fsid

    def require_own(self, which: VolumeId) -> None:
        """FAILED_PRECONDITION for what was made while the same name meant another Ceph."""
        if which.fsid and which.fsid != ids.short_fsid(self.fsid):
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"{which} was made in the Ceph whose fsid begins with {which.fsid}, and cluster {self.name!r} is now "
                f"{self.fsid}: look at its monitors in the configuration",
            )

    @property
    def configuration(self) -> str:
        """A ceph.conf for programs that connect by themselves: without the key, and without limits of time."""
        options = {"mon_host": ",".join(self.config.monitors), **self.config.options}
        return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in options.items())

    def close(self) -> None:
        """Within a limit: librados may never come back from its own shutdown, and who is told to end must end."""
        closing = threading.Thread(target=self._shut_down, name="shutdown", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("a connection to Ceph is left open: it does not close", cluster=self.name, user=self.user)

    def _shut_down(self) -> None:
        with self._asking, self._lock:
            for context in self._contexts.values():
                context.close()
            self._contexts.clear()
            self._manager.close()
            self._rados.shutdown()


def _refused(code: int, prefix: str, said: str) -> CsiError:
    return from_ceph(Answered(abs(code), said or f"code {code}"), prefix)


def _is_key(text: str) -> bool:
    """Type, time, length, and as many bytes as that says, in base64: what librados can read, and would write to stderr if it couldn't."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(decoded) > 12 and len(decoded) == 12 + int.from_bytes(decoded[10:12], "little")


class CephClusters:
    """Connections by cluster and credentials, the least recently used given up when there are many."""

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
        """With the request's secrets; without any, with the driver's own user."""
        config = self._config_of(cluster)
        user = secrets.get("userID") or secrets.get("adminID") or ""
        key = secrets.get("userKey") or secrets.get("adminKey") or ""
        if not secrets:
            return self.own(cluster)
        if not user or not key:
            raise CsiError(GrpcCode.UNAUTHENTICATED, "the secret must have userID and userKey")
        if not _is_key(key.strip()):
            raise CsiError(
                GrpcCode.UNAUTHENTICATED, "the secret's userKey is no key of Ceph's, as `ceph auth get-key` prints it"
            )
        return self._get(config, user.removeprefix("client."), key.strip())

    def own(self, cluster: str) -> CephCluster:
        config = self._config_of(cluster)
        if not config.user:
            raise CsiError(
                GrpcCode.UNAUTHENTICATED,
                f"the request has no secrets, and the configuration of cluster {cluster!r} no userID and keyFile",
            )
        try:
            key = Path(config.key_file).read_text().strip()
        except OSError as error:
            raise CsiError(GrpcCode.UNAUTHENTICATED, f"{config.key_file}: {error.strerror}") from error
        return self._get(config, config.user.removeprefix("client."), key)

    def _config_of(self, cluster: str) -> ClusterConfig:
        config = self.config.clusters.get(cluster)
        if config is None:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"cluster {cluster!r} is in no configuration")
        return config

    def _get(self, config: ClusterConfig, user: str, key: str) -> CephCluster:
        hashed = hashlib.sha256(key.encode(errors="replace")).hexdigest()
        options = tuple(f"{name}={value}" for name, value in sorted(config.options.items()))
        which = (config.cluster, user, hashed, *config.monitors, *options)
        if (found := self._known(which)) is not None:
            return found
        with self._lock:
            opening = self._opening.setdefault(which, threading.Lock())
        with opening:
            try:
                return self._known(which) or self._opened(which, CephCluster(config, user, key, self._timeout_seconds))
            finally:
                with self._lock:
                    self._opening.pop(which, None)  # keys that are wrong would be remembered for ever

    def _known(self, which: tuple[str, ...]) -> CephCluster | None:
        with self._lock:
            found = self._open.get(which)
            if found is None or found.is_broken:
                return None
            self._open.move_to_end(which)
            return found

    def _opened(self, which: tuple[str, ...], opened: CephCluster) -> CephCluster:
        with self._lock:
            self._open[which] = opened
            while len(self._open) > _MOST_CONNECTIONS:
                self._open.popitem(last=False)  # closed by the collector once no call uses it any more
        return opened

    def close(self) -> None:
        with self._lock:
            for cluster in self._open.values():
                cluster.close()
            self._open.clear()
