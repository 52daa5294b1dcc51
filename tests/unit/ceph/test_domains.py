"""CSI topology: labels and requests to segments, and the accessible topology of volumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.names import CSI_TAKEOVER_PREFIX, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.decide import domains
from zonewise.ceph.decide.domains import ACTIVE, UNLABELLED, DomainLabels
from zonewise.errors import UsageError
from zonewise.topology import key_problem

SEED = (
    "failure-domain.beta.kubernetes.io/region;failure-domain.beta.kubernetes.io/zone;failure-domain.mycluster.io/rack"
)
values = st.from_regex(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", fullmatch=True)


def test_labels_keep_their_order_and_get_current_keys() -> None:
    labels = DomainLabels.parse(SEED)
    assert labels.keys == (
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.mycluster.io/rack",
    )
    assert labels.names == ("region", "zone", "rack")


@pytest.mark.parametrize(
    ("node", "segments"),
    [
        ({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"}, (("region", "r"), ("zone", "a"))),
        ({"failure-domain.beta.kubernetes.io/zone": "a"}, (("zone", "a"),)),
        ({"failure-domain.mycluster.io/rack": "7", "topology.kubernetes.io/zone": ""}, (("rack", "7"),)),
        ({"rack": "7"}, ()),
    ],
)
def test_segments_of_nodes(node: dict[str, str], segments: domains.Segments) -> None:
    labels = DomainLabels.parse(SEED)
    assert labels.segments(node) == segments
    advertised = labels.advertised(node)
    assert advertised == ({f"{CSI_TOPOLOGY_PREFIX}{name}": value for name, value in segments} or {UNLABELLED: "true"})
    assert domains.segments_of(advertised) == segments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no label"),
        (" ; ", "names no label"),
        ("Example.com/zone", "not a DNS name"),
        ("zone;zone", "twice"),
        ("topology.kubernetes.io/zone;failure-domain.beta.kubernetes.io/zone", "twice"),
        ("example.com/zone;topology.kubernetes.io/zone", "both end in 'zone'"),
        ("example.com/unlabelled", "the driver reserves"),
    ],
)
def test_invalid_domain_labels_are_rejected_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        DomainLabels.parse(text)
    assert "\n" not in str(error.value)


def test_zone_is_within_its_region() -> None:
    zone = (("region", "eu"), ("zone", "eu-1"))
    assert domains.is_within(zone, (("region", "eu"),))
    assert domains.is_within(zone, zone)
    assert not domains.is_within((("region", "eu"),), zone)
    assert not domains.is_within(zone, (("region", "us"),))


def test_volume_accessible_from_domain_and_takeover_labels() -> None:
    assert domains.accessible_topology(()) == []
    assert domains.accessible_topology((("region", "eu"), ("zone", "eu-1"))) == [
        {f"{CSI_TOPOLOGY_PREFIX}region": "eu", f"{CSI_TOPOLOGY_PREFIX}zone": "eu-1"},
        {f"{CSI_TAKEOVER_PREFIX}zone.eu-1": ACTIVE},
        {f"{CSI_TAKEOVER_PREFIX}region.eu": ACTIVE},
    ]


@given(name=values, value=values)
def test_every_takeover_key_is_a_valid_label(name: str, value: str) -> None:
    assert key_problem(domains.takeover_key(name, value)) is None


def test_long_takeover_keys_stay_distinct() -> None:
    one, two = (domains.takeover_key("zone", "z" * 62 + last) for last in "ab")
    assert one != two


def test_foreign_keys_of_a_request_are_ignored() -> None:
    topology = {
        f"{CSI_TOPOLOGY_PREFIX}zone": "a",
        f"{CSI_TAKEOVER_PREFIX}zone.b": ACTIVE,
        UNLABELLED: "true",
        "other.io/zone": "c",
    }
    assert domains.segments_of(topology) == (("zone", "a"),)


def test_allowed_topologies_may_use_node_labels() -> None:
    names = ("region", "zone")
    assert domains.segments_of({"topology.kubernetes.io/zone": "a"}, names) == (("zone", "a"),)
    assert domains.segments_of({"failure-domain.beta.kubernetes.io/zone": "a"}, names) == (("zone", "a"),)
    assert domains.unknown_key({"topology.kubernetes.io/zone": "a", f"{CSI_TOPOLOGY_PREFIX}rack": "r"}, names) == ""
    assert (
        domains.unknown_key({f"{CSI_TOPOLOGY_PREFIX}zone": "a", "kubernetes.io/hostname": "n"}, names)
        == "kubernetes.io/hostname"
    )
