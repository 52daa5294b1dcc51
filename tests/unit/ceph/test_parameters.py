"""StorageClass parameters and driver configuration, valid and invalid."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.ceph import config
from zonewise.ceph.config import ClusterConfig, CsiConfig, CsiConfigFile
from zonewise.ceph.decide import parameters
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.decide.parameters import CloneDomain, PoolBalance, PoolRule
from zonewise.errors import UsageError

ONE = ClusterConfig("one", ("10.0.0.1",))
CONFIG = CsiConfig({"one": ONE})
TWO = CsiConfig({"one": ONE, "two": ClusterConfig("two", ("10.0.0.2",))})
ZONES = [{"poolName": "pa", "dataPool": "ec", "domainSegments": [{"domainLabel": "x.io/zone", "value": "a"}]}]


def test_all_parameters_are_parsed() -> None:
    parsed = parameters.parse_parameters(
        {
            "clusterID": "two",
            "pool": "journal",
            "topologyConstrainedPools": json.dumps(ZONES),
            "imageFeatures": "layering, exclusive-lock",
            "balance": "space",
            "volumeBindingMode": "Immediate",
            "cloneDomain": "requested",
            "overcommit": "2.5",
            "mounter": "krbd",
            "csi.storage.k8s.io/pvc/name": "data",
        },
        TWO,
        ("region", "zone"),
    )
    assert (parsed.kind, parsed.cluster, parsed.pool) == (VolumeKind.RBD, "two", "journal")
    assert parsed.rules == (PoolRule("pa", "ec", (("zone", "a"),)),)
    assert (parsed.balance, parsed.is_immediate, parsed.clone_domain) == (
        PoolBalance.SPACE,
        True,
        CloneDomain.REQUESTED,
    )
    assert (parsed.overcommit, parsed.features) == (2.5, ("layering", "exclusive-lock"))
    assert parsed.for_node == {"mounter": "krbd"}


def test_defaults_of_missing_parameters() -> None:
    parsed = parameters.parse_parameters({"pool": "p", "dataPool": "ec"}, CONFIG)
    assert (parsed.cluster, parsed.rules) == ("one", (PoolRule("p", "ec"),))
    files = parameters.parse_parameters({"fsName": "fs"}, CONFIG)
    assert (files.kind, files.filesystem, files.group, files.rules) == (VolumeKind.CEPHFS, "fs", "csi", (PoolRule(""),))


def test_pools_of_the_configuration_are_the_default() -> None:
    both = {"pool": "journal", "topologyConstrainedPools": ZONES}
    settings = CsiConfig({"one": ClusterConfig("one", ("m",), rbd=both)})
    assert parameters.parse_parameters({}, settings).rules[0].pool == "pa"
    own = parameters.parse_parameters({"topologyConstrainedPools": '[{"poolName": "mine"}]'}, settings)
    assert own.rules == (PoolRule("mine"),)


INVALID: dict[str, tuple[dict[str, str], str]] = {
    "no cluster": ({"pool": "p"}, "parameter clusterID '' is not in the driver's configuration, which has one, two"),
    "no pool": ({"clusterID": "one"}, "parameter pool is missing"),
    "no file system": ({"clusterID": "one", "type": "cephfs"}, "parameter fsName is missing"),
    "kind": ({"clusterID": "one", "type": "nfs"}, "parameter type is 'nfs'; write rbd or cephfs"),
    "spelling": ({"clusterID": "one", "Pool": "p"}, "parameter Pool is not a parameter.*did you mean 'pool'"),
    "balance": ({"clusterID": "one", "pool": "p", "balance": "even"}, "write random or space or count"),
    "binding": ({"clusterID": "one", "pool": "p", "volumeBindingMode": "Later"}, "write Immediate or Wait"),
    "overcommit": ({"clusterID": "one", "pool": "p", "overcommit": "-1"}, "parameter overcommit is '-1'"),
    "not a number": ({"clusterID": "one", "pool": "p", "overcommit": "nan"}, "parameter overcommit is 'nan'"),
    "features": ({"clusterID": "one", "pool": "p", "imageFeatures": "striping"}, "imageFeatures has 'striping'"),
    "no layering": ({"clusterID": "one", "pool": "p", "imageFeatures": "object-map"}, "lacks layering"),
    "no lock": ({"clusterID": "one", "pool": "p", "imageFeatures": "layering"}, "lacks exclusive-lock"),
}


@pytest.mark.parametrize(("invalid", "message"), INVALID.values(), ids=INVALID)
def test_invalid_parameters_are_rejected(invalid: dict[str, str], message: str) -> None:
    with pytest.raises(CsiError, match=message) as error:
        parameters.parse_parameters(invalid, TWO)
    assert error.value.code is GrpcCode.INVALID_ARGUMENT


POOLS: dict[str, tuple[Any, str]] = {
    "no list": ({}, "must be a list of pools"),
    "no object": (["pa"], "a pool must be an object"),
    "no name": ([{"domainSegments": []}], "a pool without 'poolName'"),
    "a path": ([{"poolName": "../pa"}], "'../pa' is not a valid name"),
    "misspelt": ([{"poolName": "p", "domainSegment": []}], "did you mean 'domainSegments'"),
    "no value": ([{"poolName": "p", "domainSegments": [{"domainLabel": "zone"}]}], "needs 'domainLabel' and 'value'"),
    "bad value": (
        [{"poolName": "p", "domainSegments": [{"domainLabel": "zone", "value": "a/b"}]}],
        "pool 'p': ",
    ),
    "twice": (
        [{"poolName": "p", "domainSegments": [{"domainLabel": "zone", "value": v} for v in "ab"]}],
        "names one domain label twice",
    ),
    "alike": (
        [
            {"poolName": "p", "domainSegments": [{"domainLabel": f"{prefix}/zone", "value": "a"}]}
            for prefix in ("x.io", "y.io")
        ],
        "can't be told apart",
    ),
}


@pytest.mark.parametrize(("listed", "message"), POOLS.values(), ids=POOLS)
def test_invalid_topology_constrained_pools_are_rejected(listed: Any, message: str) -> None:
    with pytest.raises(CsiError, match=message):
        parameters.parse_parameters({"pool": "j", "topologyConstrainedPools": json.dumps(listed)}, CONFIG)


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=4), st.text(max_size=200))
def test_any_input_is_parsed_or_rejected(random: dict[str, str], pools: str) -> None:
    rejection = None
    try:
        parameters.parse_parameters({"pool": "p", **random, "topologyConstrainedPools": pools}, CONFIG)
    except CsiError as error:
        rejection = error
    assert rejection is None or (rejection.code is GrpcCode.INVALID_ARGUMENT and len(str(rejection)) < 1000)


def test_both_versions_of_the_configuration_are_parsed() -> None:
    cluster = {"clusterID": "one", "monitors": ["10.0.0.1:6789"], "userID": "csi", "keyFile": "/key"}
    new = config.parse(json.dumps({"version": 2, "topology-takeover": {}, "clusters": [cluster]}))
    assert new == config.parse(json.dumps([cluster]))
    assert new.clusters["one"].user == "csi"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not valid JSON"),
        ({"clusters": {}}, "must be a list"),
        ([{"clusterID": "a b", "monitors": ["m"]}], 'every cluster needs a "clusterID"'),
        ([{"clusterID": "one"}], "'one': \"monitors\" must be"),
        ([{"clusterID": "one", "monitors": ["m"], "monitor": "m"}], "unknown key 'monitor'"),
        ([{"clusterID": "one", "monitors": ["m"], "userID": "csi"}], "must be set together"),
        ([{"clusterID": "one", "monitors": ["m"]}] * 2, "has cluster 'one' twice"),
        ([{"clusterID": "one", "monitors": ["m"], "rbd": {"pools": []}}], "unknown key 'pools'"),
    ],
)
def test_invalid_configurations_are_rejected(document: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config.parse(document if isinstance(document, str) else json.dumps(document))


def test_invalid_edit_keeps_the_last_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('[{"clusterID": "one", "monitors": ["m"]}]')
    settings = CsiConfigFile(path)
    path.write_text("[{")
    assert set(settings.now().clusters) == {"one"}
    path.write_text('[{"clusterID": "two", "monitors": ["m"]}]')
    assert set(settings.now().clusters) == {"two"}
    path.unlink()
    assert set(settings.now().clusters) == {"two"}
    with pytest.raises(FileNotFoundError):
        CsiConfigFile(path)
