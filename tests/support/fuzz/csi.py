"""What CSI callers, storage classes, the configuration and the takeover map say: read, or refused by an error of ours."""

from __future__ import annotations

import json

import msgspec

from zonewise.ceph import config
from zonewise.ceph.controller.list_volumes import _parse_token
from zonewise.ceph.decide import ids, takeover
from zonewise.ceph.decide.domains import segments_of, unknown_key
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.parameters import parse_parameters
from zonewise.ceph.decide.takeover import TakeoverError
from zonewise.errors import UsageError

POOLS = '[{"poolName":"a","domainSegments":[{"domainLabel":"zone","value":"zone-a"}]}]'
SEED = {
    "config": {"clusters": [{"clusterID": "c", "monitors": ["10.0.0.1:6789"], "rbd": {"pool": "p"}, "cephFS": {"fsName": "f"}}]},
    "parameters": {"clusterID": "c", "pool": "p", "topologyConstrainedPools": POOLS, "balance": "random", "imageFeatures": "layering,exclusive-lock"},
    "ids": ["zw1.rbd.vol.c.1.2.00112233." + "ab" * 16, "zw1.fs.snap.c.1.2." + "cd" * 16, "csi-vol-" + "ab" * 16, "c/1/0-key"],
    "topology": {"topology.csi.zonewise.dev/zone": "zone-a", "topology.kubernetes.io/zone": "zone-b"},
    "takeover": {takeover.DOCUMENT: '{"version": 2, "topology-takeover": {"zone=zone-a": ["zone-b"], "zone-c": ["all"]}}'},
}  # fmt: skip
SEEDS = [
    json.dumps(SEED).encode(),
    json.dumps({**SEED, "parameters": {"clusterID": "c", "type": "cephfs", "fsName": "f"}}).encode(),
]
WORDS = (
    *SEED, *SEED["parameters"], *SEED["ids"], takeover.MAP, takeover.DOCUMENT, "rbd", "cephFS", "cephfs", "zone", "zone-a", "rack", POOLS, "dataPool",
    "mounter", "cloneDomain", "overcommit", "volumeBindingMode", "subvolumeGroup", "layering,exclusive-lock", "space", "count", "requested", "*", "csi.storage.k8s.io/pv/name",
)  # fmt: skip
REFUSALS = (CsiError, UsageError, TakeoverError)


def check(data: bytes) -> None:
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()  # protobuf and the API server have no half characters
        parameters = msgspec.convert(body["parameters"], dict[str, str])
        texts = msgspec.convert(body["ids"], list[str])
        topology = msgspec.convert(body["topology"], dict[str, str])
        takeovers = msgspec.convert(body["takeover"], dict[str, str])
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    parsed = _try(config.parse, json.dumps(body.get("config")))
    _try(parse_parameters, parameters, parsed or config.parse(json.dumps(SEED["config"])))
    for text in texts:
        if volume := ids.parse_volume_id(text):
            assert ids.parse_volume_id(str(volume)) == volume
            assert ids.parse_image_name(volume.image) == (volume.object_type, volume.token)
        _try(ids.check_name, text, "a volume")
        _try(_parse_token, text)
        ids.parse_image_name(text)
    segments_of(topology, ("zone", "rack"))
    unknown_key(topology, ("zone", "rack"))
    if (takeover_map := _try(takeover.parse_takeover_map, takeovers, ("zone", "rack"))) is not None:
        again = {takeover.MAP: json.dumps(takeover_map.to_json())}
        assert takeover.parse_takeover_map(again, ("zone", "rack")).to_json() == takeover_map.to_json()


def _try(read, *arguments):  # noqa: ANN001, ANN002, ANN202 - any reader
    try:
        return read(*arguments)
    except REFUSALS as error:
        assert str(error)
        return None
