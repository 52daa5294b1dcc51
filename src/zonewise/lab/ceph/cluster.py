"""Ceph cluster for labs and tests on this machine, one OSD per zone: start, attach, stop zones, remove.

Pools: for each zone `rbd-<zone>` and `fs-<zone>` with one copy in that zone alone, and across the zones `csi-journal`,
`fs-meta` and `fs-data`. The file system is `csifs`. Everything is below one directory, with records of the processes.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from zonewise.errors import ZonewiseError
from zonewise.lab import processes, records
from zonewise.lab.decide import ceph_conf
from zonewise.lab.decide.ceph_conf import Store
from zonewise.objects.stored import Stored

FILESYSTEM: Final = "csifs"
JOURNAL_POOL: Final = "csi-journal"
CLUSTER_ID: Final = "lab"
ZONES: Final = ("zone-a", "zone-b", "zone-c")
_RECORD: Final = "ceph.json"
_TIMEOUT_SECONDS: Final = 180.0
_COMMANDS: Final = ("ceph-mon", "ceph-osd", "ceph-mgr", "ceph-mds", "monmaptool", "ceph-authtool", "setpriv")
_FREE_PORTS: Final = range(24000, 32000)
_FREE_PORT_TRIES: Final = 1000


class CephError(ZonewiseError):
    pass


class LabCeph(Stored, frozen=True, kw_only=True):
    """The record of a cluster, and operations on it."""

    directory: Path
    zones: tuple[str, ...]
    store: Store
    port: int
    fsid: str
    address: str = "127.0.0.1"

    @property
    def conf(self) -> Path:
        return self.directory / "ceph.conf"

    @property
    def csi_file(self) -> Path:
        """The driver's configuration for this cluster, for `zonewise csi ... --config`."""
        return self.directory / "csi.json"

    @property
    def monitors(self) -> list[str]:
        return [f"v2:{self.address}:{self.port}/0"]

    @property
    def key(self) -> str:
        """The key of client.admin."""
        return Path(self.key_file).read_text().strip()

    @property
    def key_file(self) -> str:
        return str(self.directory / "admin.key")

    @property
    def secrets(self) -> dict[str, str]:
        """As in a CSI request."""
        return {"userID": "admin", "userKey": self.key}

    def pool(self, zone: str) -> str:
        return f"rbd-{zone}"

    def data_pool(self, zone: str) -> str:
        return f"fs-{zone}"

    def pools_by_domain(self, prefix: str = "rbd", label: str = "topology.kubernetes.io/zone") -> list[dict[str, Any]]:
        """The topologyConstrainedPools of a StorageClass."""
        return [
            {"poolName": f"{prefix}-{zone}", "domainSegments": [{"domainLabel": label, "value": zone}]}
            for zone in self.zones
        ]

    def csi_config(self, key_file: str = "") -> dict[str, Any]:
        """The driver's configuration document for this cluster; with another path of the key, as a container sees it."""
        cluster = {
            "clusterID": CLUSTER_ID,
            "monitors": self.monitors,
            "userID": "admin",
            "keyFile": key_file or self.key_file,
            "options": {
                "ms_bind_msgr1": "false",
                "rbd_default_features": "layering,exclusive-lock,object-map,fast-diff,deep-flatten",
            },
            "rbd": {"pool": JOURNAL_POOL, "topologyConstrainedPools": self.pools_by_domain()},
            "cephFS": {"fsName": FILESYSTEM, "topologyConstrainedPools": self.pools_by_domain("fs")},
        }
        return {"version": 2, "topology-takeover": {}, "clusters": [cluster]}

    def process(self, name: str) -> processes.Process:
        """mon, mgr, mds, or osd0, osd1, ... in the order of the zones."""
        process = processes.find(self.directory, name)
        if process is None:
            raise CephError(f"the Ceph cluster in {self.directory} has no process {name!r}")
        return process

    def osd(self, zone: str) -> processes.Process:
        return self.process(self._osd_name(zone))

    def zone_down(self, zone: str, number: signal.Signals = signal.SIGTERM) -> None:
        """SIGSTOP freezes its OSD, other signals end it. A memory store is empty after SIGKILL."""
        process = self.osd(zone)
        process.signal(number)
        if number is not signal.SIGSTOP and not process.wait(_TIMEOUT_SECONDS):
            raise CephError(f"the OSD of {zone} does not exit; its log is below {self.directory}")

    def zone_up(self, zone: str) -> None:
        self._resume(self._osd_name(zone), "ceph-osd", str(self.zones.index(zone)))

    def stop_process(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self.process(name)
        process.signal(number)
        if number is not signal.SIGSTOP:
            process.wait(_TIMEOUT_SECONDS)

    def _osd_name(self, zone: str) -> str:
        if zone not in self.zones:
            raise CephError(f"unknown zone {zone!r}: the zones are {', '.join(self.zones)}")
        return f"osd{self.zones.index(zone)}"

    def _resume(self, name: str, program: str, number: str) -> None:
        process = self.process(name)
        if process.running:
            process.signal(signal.SIGCONT)
        else:
            _daemon(self.directory, name, program, number)

    def connect(self) -> Any:
        import rados  # noqa: PLC0415 - a system package

        limits = {"client_mount_timeout": "60", "rados_mon_op_timeout": "60", "rados_osd_op_timeout": "60"}
        handle = rados.Rados(conffile=str(self.conf), conf=limits)
        handle.connect()
        return handle

    def wait_up(self, osds: int | None = None) -> None:
        """Wait until that many OSDs are up, and with all OSDs up until all placement groups are active."""
        handle = self.connect()
        try:
            count = len(self.zones) if osds is None else osds
            _wait(lambda: mon(handle, "osd stat")["num_up_osds"] == count, f"{count} OSDs up")
            if count == len(self.zones):
                _wait(lambda: _all_active(handle), "all placement groups active")
        finally:
            handle.shutdown()


def mon(handle: Any, prefix: str, stdin: str = "", **arguments: Any) -> Any:
    """A monitor command; returns the decoded reply."""
    text = json.dumps({"prefix": prefix, "format": "json", **arguments})
    code, output, message = handle.mon_command(text, stdin.encode())
    if code:
        raise CephError(f"{prefix} {arguments}: {os.strerror(-code)}: {message}")
    return json.loads(output) if output.strip() else None


def start(
    directory: Path,
    zones: Sequence[str] = ZONES,
    store: Store = Store.MEMORY,
    osd_bytes: int = 4 << 30,
    address: str = "127.0.0.1",
    port: int = 0,
) -> LabCeph:
    """A new cluster, which serves on return; its monitor at `port`, or at a free one.

    After a failure only its logs remain.
    """
    missing = missing_commands()
    if missing:
        raise CephError(f"{', '.join(missing)} not found: install Ceph with `zonewise lab setup`, as root")
    if directory.exists() and any(entry.name != processes.LOGS for entry in directory.iterdir()):
        raise CephError(f"{directory} exists already: remove it, or choose another directory")
    cluster = LabCeph(
        directory=directory,
        zones=tuple(zones),
        store=store,
        port=port or _free_port(address),
        fsid=str(uuid.uuid4()),
        address=address,
    )
    try:
        _make(cluster, osd_bytes)
        _bring_up(cluster)
    except BaseException:
        remove(directory, keep_logs=True)
        raise
    _write(cluster.csi_file, json.dumps(cluster.csi_config(), indent=2))
    records.write(directory / _RECORD, cluster)
    return cluster


def missing_commands() -> list[str]:
    return [command for command in _COMMANDS if shutil.which(command) is None]


def available() -> bool:
    """Whether Ceph's programs and its Python binding are installed."""
    return not missing_commands() and importlib.util.find_spec("rados") is not None


def attach(directory: Path) -> LabCeph:
    try:
        return records.read(directory / _RECORD, LabCeph)
    except FileNotFoundError:
        raise CephError(f"no Ceph cluster in {directory}: start one first") from None


def remove(directory: Path, *, keep_logs: bool = False) -> None:
    """Stop all processes and remove the directory. No error if it does not exist."""
    if not directory.exists():
        return
    processes.close(directory, 0)  # without a clean shutdown, which takes seconds: the data is not needed
    if not keep_logs:
        shutil.rmtree(directory)
        return
    for entry in directory.iterdir():
        if entry.is_dir() and entry.name != processes.LOGS:
            shutil.rmtree(entry)
        elif not entry.is_dir():
            entry.unlink()


def _free_port(address: str) -> int:
    """Not an ephemeral one, which a connection may take while the monitor is stopped; and none of a lab's slots."""
    for _ in range(_FREE_PORT_TRIES):
        port = _FREE_PORTS.start + secrets.randbelow(len(_FREE_PORTS))
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise CephError(f"no port of {address} can be used: {error.strerror}") from error
            return port
    raise CephError(f"no free port of {address} found between {_FREE_PORTS.start} and {_FREE_PORTS.stop - 1}")


def _make(cluster: LabCeph, osd_bytes: int) -> None:
    """Directories, keys and stores, before any daemon runs. Stores are created in parallel."""
    directory = cluster.directory
    osds = range(len(cluster.zones))
    for name in ("sockets", "csi", processes.LOGS, "mon", "mgr", "mds", *(f"osd{number}" for number in osds)):
        (directory / name).mkdir(parents=True, mode=0o700, exist_ok=True)
    names = ["mon.", "client.admin", "mgr.x", "mds.a", *(f"osd.{number}" for number in osds)]
    keys = {name: _run("ceph-authtool", "--gen-print-key").strip() for name in names}
    cluster.conf.write_text(
        ceph_conf.conf(directory, cluster.fsid, cluster.address, cluster.port, cluster.zones, cluster.store, osd_bytes)
    )
    _write(directory / "mon.keyring", ceph_conf.keyring(keys, caps=True))
    _write(directory / "admin.key", keys["client.admin"])
    keyrings = {"client.admin": "keyring", "mgr.x": "mgr/keyring", "mds.a": "mds/keyring"}
    for name, file in (keyrings | {f"osd.{number}": f"osd{number}/keyring" for number in osds}).items():
        _write(directory / file, ceph_conf.keyring({name: keys[name]}, caps=False))
    uuids = {str(number): str(uuid.uuid4()) for number in osds}
    _write(directory / "osds.json", json.dumps({"uuids": uuids, "keys": {str(n): keys[f"osd.{n}"] for n in osds}}))
    monmap, keyfile = str(directory / "monmap"), str(directory / "mon.keyring")
    address = f"[v2:{cluster.address}:{cluster.port}/0]"
    release = ceph_conf.release(_run("ceph-mon", "--version"))
    fsid = ["--fsid", cluster.fsid, "--addv", "m", address, "--set-min-mon-release", release]
    _run("monmaptool", "--create", "--clobber", *fsid, monmap)
    stores = [
        ["ceph-osd", "-i", number, "--mkfs", "--osd-uuid", osd_uuid, "--no-mon-config"]
        for number, osd_uuid in uuids.items()
    ]
    _run_together(directory, [*stores, ["ceph-mon", "-i", "m", "--mkfs", "--monmap", monmap, "--keyring", keyfile]])


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _run_together(directory: Path, commands: Sequence[Sequence[str]]) -> None:
    """All end when one fails, the wait is interrupted, or this process is killed."""
    running: list[subprocess.Popen[str]] = []
    try:
        for program, *arguments in commands:
            running.append(_begin(directory, program, *arguments))
        for process in running:
            output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
            if process.returncode:
                raise CephError(f"{process.args!r}: {output.strip()[-400:]}")
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.communicate()


def _begin(directory: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    argv = ["setpriv", "--pdeathsig", "KILL", "--", program, "-c", str(directory / "ceph.conf"), *arguments]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def _run(*argv: str) -> str:
    result = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS, check=False
    )
    if result.returncode:
        raise CephError(f"{argv[0]}: {(result.stderr or result.stdout).strip()[-400:]}")
    return result.stdout


def _daemon(directory: Path, name: str, program: str, number: str) -> None:
    processes.spawn(directory, name, [program, "-c", str(directory / "ceph.conf"), "-i", number, "-f"])


def _bring_up(cluster: LabCeph) -> None:
    directory = cluster.directory
    _daemon(directory, "mon", "ceph-mon", "m")
    handle = cluster.connect()
    try:
        _daemon(directory, "mgr", "ceph-mgr", "x")
        osds = json.loads((directory / "osds.json").read_text())
        for number, osd_uuid in osds["uuids"].items():
            secret = json.dumps({"cephx_secret": osds["keys"][number]})
            mon(handle, "osd new", stdin=secret, uuid=osd_uuid, id=int(number))
            _daemon(directory, f"osd{number}", "ceph-osd", number)
        _lay_out(handle, cluster)
        _wait(lambda: mon(handle, "osd stat")["num_up_osds"] == len(cluster.zones), "all OSDs up")
        _make_pools(handle, cluster)
        _daemon(directory, "mds", "ceph-mds", "a")
        _wait(lambda: mon(handle, "mgr dump")["available"], "the manager")
        mon(handle, "health mute", code="MGR_MODULE_ERROR", sticky=True)  # some modules are disabled on purpose
        _wait(lambda: _mds_active(handle), "the metadata server")
        _wait(lambda: _all_active(handle), "all placement groups active")
    finally:
        handle.shutdown()


def _lay_out(handle: Any, cluster: LabCeph) -> None:
    for zone in cluster.zones:
        mon(handle, "osd crush add-bucket", name=zone, type="zone")
        mon(handle, "osd crush move", name=zone, args=["root=default"])
        mon(handle, "osd crush rule create-simple", name=f"rule-{zone}", root=zone, type="osd")
    mon(handle, "osd crush rule create-simple", name="rule-across", root="default", type="zone")


def _make_pools(handle: Any, cluster: LabCeph) -> None:
    def make(name: str, rule: str, copies: int, application: str) -> None:
        kind: dict[str, Any] = {"pool_type": "replicated", "rule": rule, "size": copies}
        mon(handle, "osd pool create", pool=name, pg_num=4, pgp_num=4, **kind)
        mon(handle, "osd pool application enable", pool=name, app=application)

    copies = min(3, len(cluster.zones))
    for zone in cluster.zones:
        make(cluster.pool(zone), f"rule-{zone}", 1, "rbd")
        make(cluster.data_pool(zone), f"rule-{zone}", 1, "cephfs")
    for name, application in ((JOURNAL_POOL, "rbd"), ("fs-meta", "cephfs"), ("fs-data", "cephfs")):
        make(name, "rule-across", copies, application)
    mon(handle, "fs new", fs_name=FILESYSTEM, metadata="fs-meta", data="fs-data")
    for zone in cluster.zones:
        mon(handle, "fs add_data_pool", fs_name=FILESYSTEM, pool=cluster.data_pool(zone))


def _mds_active(handle: Any) -> bool:
    daemons = mon(handle, "fs dump")["filesystems"][0]["mdsmap"]["info"].values()
    return any(daemon["state"] == "up:active" for daemon in daemons)


def _all_active(handle: Any) -> bool:
    summary = mon(handle, "pg stat")["pg_summary"]
    states = {state["name"]: state["num"] for state in summary["num_pg_by_state"]}
    return bool(states) and all("active" in name for name in states) and sum(states.values()) == summary["num_pgs"]


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise CephError(f"Ceph: {what}: not within {_TIMEOUT_SECONDS:g} s; see the logs below its directory")
        time.sleep(0.05)


if __name__ == "__main__":
    print("--ceph" if available() else "")  # noqa: T201 - `make up` adds it to its command line
