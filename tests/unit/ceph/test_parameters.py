"""Classes and configurations, right and wrong: what is wrong is named, and what was meant is guessed."""

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


def test_what_a_class_can_say() -> None:
    read = parameters.read(
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
    assert (read.kind, read.cluster, read.pool) == (VolumeKind.RBD, "two", "journal")
    assert read.rules == (PoolRule("pa", "ec", (("zone", "a"),)),)
    assert (read.balance, read.is_immediate, read.clone_domain) == (PoolBalance.SPACE, True, CloneDomain.REQUESTED)
    assert (read.overcommit, read.features) == (2.5, ("layering", "exclusive-lock"))
    assert read.for_node == {"mounter": "krbd"}


def test_what_a_class_leaves_out() -> None:
    read = parameters.read({"pool": "p", "dataPool": "ec"}, CONFIG)
    assert (read.cluster, read.rules) == ("one", (PoolRule("p", "ec"),))
    files = parameters.read({"fsName": "fs"}, CONFIG)
    assert (files.kind, files.filesystem, files.group, files.rules) == (VolumeKind.CEPHFS, "fs", "csi", (PoolRule(""),))


def test_pools_of_the_configuration_serve_classes_without_any() -> None:
    both = {"pool": "journal", "topologyConstrainedPools": ZONES}
    settings = CsiConfig({"one": ClusterConfig("one", ("m",), rbd=both)})
    assert parameters.read({}, settings).rules[0].pool == "pa"
    own = parameters.read({"topologyConstrainedPools": '[{"poolName": "mine"}]'}, settings)
    assert own.rules == (PoolRule("mine"),)


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no cluster": ({"pool": "p"}, "parameter clusterID '' is in no configuration; configured: one, two"),
    "no pool": ({"clusterID": "one"}, "parameter pool is missing"),
    "no file system": ({"clusterID": "one", "type": "cephfs"}, "parameter fsName is missing"),
    "kind": ({"clusterID": "one", "type": "nfs"}, "parameter type is 'nfs'; write rbd or cephfs"),
    "spelling": ({"clusterID": "one", "Pool": "p"}, "parameter Pool is no parameter.*did you mean 'pool'"),
    "balance": ({"clusterID": "one", "pool": "p", "balance": "even"}, "write random or space or count"),
    "binding": ({"clusterID": "one", "pool": "p", "volumeBindingMode": "Later"}, "write Immediate or Wait"),
    "overcommit": ({"clusterID": "one", "pool": "p", "overcommit": "-1"}, "parameter overcommit is '-1'"),
    "not a number": ({"clusterID": "one", "pool": "p", "overcommit": "nan"}, "parameter overcommit is 'nan'"),
    "features": ({"clusterID": "one", "pool": "p", "imageFeatures": "striping"}, "imageFeatures has 'striping'"),
    "no layering": ({"clusterID": "one", "pool": "p", "imageFeatures": "object-map"}, "lacks layering"),
    "no lock": ({"clusterID": "one", "pool": "p", "imageFeatures": "layering"}, "lacks exclusive-lock"),
}


@pytest.mark.parametrize(("said", "message"), WRONG.values(), ids=WRONG)
def test_wrong_classes(said: dict[str, str], message: str) -> None:
    with pytest.raises(CsiError, match=message) as refused:
        parameters.read(said, TWO)
    assert refused.value.code is GrpcCode.INVALID_ARGUMENT


POOLS: dict[str, tuple[Any, str]] = {
    "no list": ({}, "must be a list of pools"),
    "no object": (["pa"], "a pool must be an object"),
    "no name": ([{"domainSegments": []}], "a pool without 'poolName'"),
    "a path": ([{"poolName": "../pa"}], "'../pa' is no name"),
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
def test_wrong_pools(listed: Any, message: str) -> None:
    with pytest.raises(CsiError, match=message):
        parameters.read({"pool": "j", "topologyConstrainedPools": json.dumps(listed)}, CONFIG)


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=4), st.text(max_size=200))
def test_whatever_is_said_is_read_or_refused(said: dict[str, str], pools: str) -> None:
    refused = None
    try:
        parameters.read({"pool": "p", **said, "topologyConstrainedPools": pools}, CONFIG)
    except CsiError as error:
        refused = error
    assert refused is None or (refused.code is GrpcCode.INVALID_ARGUMENT and len(str(refused)) < 1000)


def test_configurations_of_both_versions() -> None:
    cluster = {"clusterID": "one", "monitors": ["10.0.0.1:6789"], "userID": "csi", "keyFile": "/key"}
    new = config.parse(json.dumps({"version": 2, "topology-takeover": {}, "clusters": [cluster]}))
    assert new == config.parse(json.dumps([cluster]))
    assert new.clusters["one"].user == "csi"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is no JSON"),
        ({"clusters": {}}, "must be a list"),
        ([{"clusterID": "a b", "monitors": ["m"]}], 'every cluster needs a "clusterID"'),
        ([{"clusterID": "one"}], "'one': \"monitors\" must be"),
        ([{"clusterID": "one", "monitors": ["m"], "monitor": "m"}], "unknown 'monitor'"),
        ([{"clusterID": "one", "monitors": ["m"], "userID": "csi"}], "go together"),
        ([{"clusterID": "one", "monitors": ["m"]}] * 2, "names cluster 'one' twice"),
        ([{"clusterID": "one", "monitors": ["m"], "rbd": {"pools": []}}], "unknown 'pools'"),
    ],
)
def test_wrong_configurations(document: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config.parse(document if isinstance(document, str) else json.dumps(document))


def test_a_configuration_that_is_edited_badly_stays_as_it_was(tmp_path: Path) -> None:
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
