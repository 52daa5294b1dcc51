"""The files of a small Ceph cluster on one machine: its configuration and its keyrings. Pure.

What makes it quick to start: every key is in the keyring that the monitor is made with, so no key is added later; map changes are
proposed after 50 ms instead of a second; only those modules of the manager are loaded that capacity and subvolumes need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from zonewise.errors import ZonewiseError


class Store(StrEnum):
    """How OSDs keep data: in memory, which is quick and lost with a killed process, or in a sparse file."""

    MEMORY = "memstore"
    FILE = "bluestore"


MODULES_LEFT_OUT = (
    "alerts balancer crash devicehealth influx insights iostat localpool mirroring nfs osd_perf_query osd_support "
    "pg_autoscaler progress prometheus restful selftest snap_schedule stats status telegraf telemetry "
    "test_orchestrator zabbix"
)
CAPS: Mapping[str, Mapping[str, str]] = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *", "mds": "allow *", "mgr": "allow *"},
    "mgr.x": {"mon": "allow profile mgr", "osd": "allow *", "mds": "allow *"},
    "mds.a": {"mon": "allow profile mds", "osd": "allow rwx", "mds": "allow *", "mgr": "allow profile mds"},
}
OSD_CAPS = {"mon": "allow profile osd", "osd": "allow *", "mgr": "allow profile osd"}


def release(version: str) -> str:
    """Name of the release in what `ceph-mon --version` prints, which a monitor's first map must bear."""
    match = re.match(r"ceph version \d\S* \(\S+\) (\w+) ", version)
    if match is None:
        raise ZonewiseError(f"`ceph-mon --version` names no release: {version.strip()!r}")
    return match[1]


def keyring(keys: Mapping[str, str], *, caps: bool) -> str:
    lines = []
    for name, value in keys.items():
        lines += [f"[{name}]", f" key = {value}"]
        allowed = OSD_CAPS if name.startswith("osd.") else CAPS[name]
        lines += [f' caps {daemon} = "{what}"' for daemon, what in allowed.items()] if caps else []
    return "\n".join(lines) + "\n"


def conf(
    directory: Path, fsid: str, address: str, port: int, zones: Sequence[str], store: Store, osd_bytes: int
) -> str:
    located = "".join(
        f"[osd.{number}]\ncrush_location = root=default zone={zone} host=host-{zone}\n"
        for number, zone in enumerate(zones)
    )
    return f"""[global]
fsid = {fsid}
mon_host = [v2:{address}:{port}/0]
ms_bind_msgr1 = false
public_addr = {address}
cluster_addr = {address}
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = {directory}/keyring
run_dir = {directory}/sockets
admin_socket = {directory}/sockets/$name.asok
log_file = {directory}/log/$name.ceph.log
crash_dir = {directory}/crash
log_to_stderr = false
err_to_stderr = true
debug_none = 0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_warn_on_pool_no_redundancy = false
mon_warn_on_insecure_global_id_reclaim = false
mon_warn_on_insecure_global_id_reclaim_allowed = false
mon_max_pg_per_osd = 1000
osd_heartbeat_interval = 1
osd_heartbeat_grace = 10
mon_osd_adjust_heartbeat_grace = false
mon_osd_down_out_interval = 86400
mon_data_avail_warn = 2
mon_data_avail_crit = 1
mon_osd_full_ratio = .97
mon_osd_nearfull_ratio = .95
mon_osd_backfillfull_ratio = .96
osd_failsafe_full_ratio = .98
[client]
log_file =
admin_socket =
rbd_default_features = layering,exclusive-lock,object-map,fast-diff,deep-flatten
[mon]
mon_data = {directory}/mon
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
mon_cluster_log_file = {directory}/log/cluster.ceph.log
mon_cluster_log_to_stderr = false
mon_memory_target = 268435456
mon_osd_cache_size = 10
mon_compact_on_start = false
mon_lease = 30
[mgr]
mgr_data = {directory}/mgr
keyring = {directory}/mgr/keyring
mgr_module_path = /usr/share/ceph/mgr
mgr_stats_period = 1
mgr_tick_period = 1
mgr_standby_modules = false
mgr_initial_modules = iostat
mgr_disabled_modules = {MODULES_LEFT_OUT}
mon_mgr_beacon_grace = 120
[osd]
osd_data = {directory}/osd$id
keyring = {directory}/osd$id/keyring
osd_objectstore = {store}
memstore_device_bytes = {osd_bytes}
bluestore_block_size = {osd_bytes}
bluestore_block_db_create = false
bluestore_block_wal_create = false
bluestore_fsck_on_mount = false
bluestore_cache_autotune = false
bluestore_cache_size = 33554432
osd_memory_target = 939524096
osd_op_num_shards = 1
osd_op_num_threads_per_shard = 2
osd_max_backfills = 10
osd_fast_shutdown = false
osd_class_update_on_start = false
osd_mclock_skip_benchmark = true
[mds]
mds_data = {directory}/mds
keyring = {directory}/mds/keyring
mds_cache_memory_limit = 67108864
mds_tick_interval = 0.1
mds_beacon_grace = 120
{located}"""
