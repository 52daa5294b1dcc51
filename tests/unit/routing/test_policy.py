"""The policy of a Service: valid values, invalid ones, and the complaints about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import service
from zonewise.api.names import (
    ALGORITHM,
    OLD_HINTS,
    OVERLOAD_THRESHOLD,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODE,
)
from zonewise.objects import Service
from zonewise.routing.algorithms import Algorithm
from zonewise.routing.policy import (
    AutomaticHints,
    Distribution,
    NoPolicy,
    Policy,
    SameDomain,
    Strength,
    TopologyKeys,
    TrafficDistribution,
    hints_enabled,
    read_policy,
)
from zonewise.routing.reason import RoutingCode, RoutingSubject
from zonewise.routing.tuning import StartingPoint, Tuning

BALANCED, PREFER, REQUIRE = Strength

POLICIES: dict[str, tuple[Service, Policy]] = {
    "nothing said": (service(), NoPolicy()),
    "keys, hard": (
        service({TOPOLOGY_KEYS: '["kubernetes.io/hostname", "example.com/rack"]'}),
        TopologyKeys(("kubernetes.io/hostname", "example.com/rack"), soft=False),
    ),
    "keys, soft by star": (
        service({TOPOLOGY_KEYS: '["example.com/rack", "*"]'}),
        TopologyKeys(("example.com/rack",), True),
    ),
    "keys, soft by the empty key": (
        service({TOPOLOGY_KEYS: '["example.com/rack", ""]'}),
        TopologyKeys(("example.com/rack",), soft=True),
    ),
    "keys, the catch-all alone": (service({TOPOLOGY_KEYS: '["*"]'}), TopologyKeys((), soft=True)),
    "keys, old spellings are today's": (
        service({TOPOLOGY_KEYS: '["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"]'}),
        TopologyKeys(("topology.kubernetes.io/zone",), soft=False),
    ),
    "keys of the spec": (service(topology_keys=("example.com/rack",)), TopologyKeys(("example.com/rack",), soft=False)),
    "no keys are no policy": (service({TOPOLOGY_KEYS: "[]"}), NoPolicy()),
    "sixteen keys": (
        service(topology_keys=tuple(f"k{number}" for number in range(16))),
        TopologyKeys(tuple(f"k{number}" for number in range(16)), soft=False),
    ),
    "same zone, balanced": (service({SAME_ZONE: "Balanced"}), SameDomain()),
    "same zone, preferred": (service({SAME_ZONE: "Prefer"}), SameDomain(zone=PREFER)),
    "same zone, required, and so the region": (
        service({SAME_ZONE: "Require"}),
        SameDomain(zone=REQUIRE, region=REQUIRE),
    ),
    "same node, required, and so zone and region": (
        service({SAME_NODE: "Require"}),
        SameDomain(REQUIRE, REQUIRE, REQUIRE),
    ),
    "same node, preferred, implies nothing": (service({SAME_NODE: "Prefer"}), SameDomain(node=PREFER)),
    "same region, required, zone preferred": (
        service({SAME_REGION: "Require", SAME_ZONE: "Prefer"}),
        SameDomain(zone=PREFER, region=REQUIRE),
    ),
    "same zone, anything else means balanced": (service({SAME_ZONE: "prefer"}), SameDomain()),
    "tuned": (
        service(
            {
                SAME_ZONE: "Prefer",
                ALGORITHM: "optimal",
                STARTING_THRESHOLD: "9",
                PADDING: "0",
                OVERLOAD_THRESHOLD: "20%",
            }
        ),
        SameDomain(zone=PREFER, tuning=Tuning(Algorithm.OPTIMAL, StartingPoint(9, per_domain=False), 0, 0.2)),
    ),
    "hints": (service({OLD_HINTS: "auto"}), AutomaticHints()),
    "hints with a threshold": (
        service({TOPOLOGY_MODE: "Auto", OVERLOAD_THRESHOLD: "0.4"}),
        AutomaticHints(Tuning(overload=0.4)),
    ),
    "distribution": (
        service(traffic_distribution="PreferSameNode"),
        Distribution(TrafficDistribution.PREFER_SAME_NODE),
    ),
    "distribution, the old name": (
        service(traffic_distribution="PreferClose"),
        Distribution(TrafficDistribution.PREFER_CLOSE),
    ),
    "hints switched off leave the distribution": (
        service({OLD_HINTS: "Disabled"}, traffic_distribution="PreferSameZone"),
        Distribution(TrafficDistribution.PREFER_SAME_ZONE),
    ),
    "bad keys leave the zone": (service({TOPOLOGY_KEYS: "rack", SAME_ZONE: "Prefer"}), SameDomain(zone=PREFER)),
    "a bad distribution is nothing": (service(traffic_distribution="Near"), NoPolicy()),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policy(name: str) -> None:
    svc, policy = POLICIES[name]
    assert read_policy(svc).policy == policy


@pytest.mark.parametrize("name", [name for name in POLICIES if not name.startswith(("bad", "a bad", "same zone, any"))])
def test_good_values_get_no_complaint(name: str) -> None:
    assert read_policy(POLICIES[name][0]).complaints == ()


PRECEDENCE = [
    (service({TOPOLOGY_KEYS: '["r"]'}), TOPOLOGY_KEYS),
    (service({TOPOLOGY_KEYS: '["r"]'}, topology_keys=("s",)), "spec.topologyKeys"),
    (service({TOPOLOGY_KEYS: '["r"]', SAME_ZONE: "Prefer"}), SAME_ZONE),
    (service({SAME_ZONE: "Prefer", OLD_HINTS: "Auto"}), OLD_HINTS),
    (service({SAME_ZONE: "Balanced", OLD_HINTS: "Auto"}), OLD_HINTS),
    (service({OLD_HINTS: "Auto"}, traffic_distribution="PreferClose"), "spec.trafficDistribution"),
    (service({SAME_NODE: "Require"}, traffic_distribution="PreferClose"), "spec.trafficDistribution"),
]


@pytest.mark.parametrize(("svc", "overruled"), PRECEDENCE[1:])
def test_overruled_policy_makes_a_complaint(svc: Service, overruled: str) -> None:
    reading = read_policy(svc)
    assert reading.source != overruled
    (complaint,) = reading.complaints
    assert complaint.code is RoutingCode.OVERRULED
    assert complaint.facts["where"] == overruled
    assert reading.source in complaint.sentence
    assert complaint.blame == (RoutingSubject("Service", "shop/web"),)


COMPLAINTS = {
    "keys are no JSON": (service({TOPOLOGY_KEYS: "zone"}), TOPOLOGY_KEYS, "JSON list of strings"),
    "keys are no list": (service({TOPOLOGY_KEYS: '"zone"'}), TOPOLOGY_KEYS, "JSON list of strings"),
    "keys are no strings": (service({TOPOLOGY_KEYS: "[1]"}), TOPOLOGY_KEYS, "JSON list of strings"),
    "keys are null": (service({TOPOLOGY_KEYS: "null"}), TOPOLOGY_KEYS, "JSON list of strings"),
    "seventeen keys": (service(topology_keys=tuple(map("k{}".format, range(17)))), "spec.topologyKeys", "17 keys"),
    "a key twice": (service({TOPOLOGY_KEYS: '["r", "s", "r"]'}), TOPOLOGY_KEYS, "twice"),
    "both catch-alls": (service({TOPOLOGY_KEYS: '["*", ""]'}), TOPOLOGY_KEYS, "twice"),
    "star first": (service({TOPOLOGY_KEYS: '["*", "r"]'}), TOPOLOGY_KEYS, "before the end"),
    "empty key first": (service({TOPOLOGY_KEYS: '["", "r"]'}), TOPOLOGY_KEYS, "before the end"),
    "no label key": (service({TOPOLOGY_KEYS: '["my rack"]'}), TOPOLOGY_KEYS, "'my rack'"),
    "keys and traffic from outside kept local": (
        service({TOPOLOGY_KEYS: '["r"]'}, external_traffic_policy="Local"),
        TOPOLOGY_KEYS,
        "externalTrafficPolicy Local",
    ),
    "strength misspelled": (service({SAME_ZONE: "Preferred"}), SAME_ZONE, "'Preferred' is invalid, Balanced applies"),
    "unknown algorithm": (service({SAME_ZONE: "Prefer", ALGORITHM: "best"}), ALGORITHM, "'best'"),
    "balanced is no way to prefer": (service({SAME_ZONE: "Prefer", ALGORITHM: "balanced"}), ALGORITHM, "'balanced'"),
    "start is no number": (service({SAME_ZONE: "Prefer", STARTING_THRESHOLD: "many"}), STARTING_THRESHOLD, "default"),
    "negative start": (service({SAME_ZONE: "Prefer", STARTING_THRESHOLD: "-1"}), STARTING_THRESHOLD, "default"),
    "padding is no number": (service({SAME_ZONE: "Prefer", PADDING: "3.5"}), PADDING, "default"),
    "more padding than threshold": (
        service({SAME_ZONE: "Prefer", STARTING_THRESHOLD: "4", PADDING: "5"}),
        PADDING,
        "'5' is invalid, 4 applies",
    ),
    "more padding than a threshold below the default padding": (
        service({SAME_ZONE: "Prefer", STARTING_THRESHOLD: "2", PADDING: "5"}),
        PADDING,
        "'5' is invalid, 2 applies",
    ),
    "threshold without percent": (service({SAME_ZONE: "Prefer", OVERLOAD_THRESHOLD: "50"}), OVERLOAD_THRESHOLD, "'50'"),
    "no overload at all": (service({SAME_ZONE: "Prefer", OVERLOAD_THRESHOLD: "0%"}), OVERLOAD_THRESHOLD, "'0%'"),
    "other digits": (service({SAME_ZONE: "Prefer", PADDING: "٣"}), PADDING, "default"),
    "hints misspelled": (service({OLD_HINTS: "aUto"}), OLD_HINTS, "'aUto' is invalid, hints stay off"),
    "unknown distribution": (service(traffic_distribution="Near"), "spec.trafficDistribution", "'Near' is unknown"),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_bad_values_are_named_with_allowed_ones(name: str) -> None:
    svc, source, words = COMPLAINTS[name]
    (complaint,) = [reason for reason in read_policy(svc).complaints if words in reason.sentence]
    assert complaint.code is RoutingCode.INVALID_VALUE
    assert complaint.facts["where"] == source
    assert complaint.remedy


IDLE = {
    "algorithm without preference": (service({ALGORITHM: "local"}), ALGORITHM),
    "padding with Require": (service({SAME_ZONE: "Require", PADDING: "3"}), PADDING),
    "algorithm with hints": (service({OLD_HINTS: "Auto", ALGORITHM: "local"}), ALGORITHM),
    "start with a preferred node": (service({SAME_NODE: "Prefer", STARTING_THRESHOLD: "9"}), STARTING_THRESHOLD),
    "a zone preferred under a required node": (service({SAME_NODE: "Require", SAME_ZONE: "Prefer"}), SAME_ZONE),
    "a preference beside traffic that stays on its node": (
        service({SAME_ZONE: "Prefer"}, internal_traffic_policy="Local"),
        SAME_ZONE,
    ),
    "a balanced region under a required zone": (service({SAME_ZONE: "Require", SAME_REGION: "Balanced"}), SAME_REGION),
}


@pytest.mark.parametrize("name", IDLE)
def test_values_without_effect_make_a_complaint(name: str) -> None:
    svc, source = IDLE[name]
    (complaint,) = read_policy(svc).complaints
    assert (complaint.code, complaint.facts["where"]) == (RoutingCode.NO_EFFECT, source)


def test_invalid_tuning_means_the_default() -> None:
    tuned = {ALGORITHM: "x", STARTING_THRESHOLD: "x", PADDING: "x", OVERLOAD_THRESHOLD: "x"}
    assert read_policy(service({SAME_ZONE: "Prefer"} | tuned)).policy == SameDomain(zone=PREFER)


def test_long_values_are_cut_in_sentences_but_not_in_facts() -> None:
    (complaint,) = read_policy(service({SAME_ZONE: "x" * 1000})).complaints
    assert len(complaint.sentence) < 200
    assert complaint.facts["value"] == "x" * 1000


def test_modes_of_other_controllers_make_no_complaint() -> None:
    assert read_policy(service({TOPOLOGY_MODE: "example.com/lowest-rtt"})).complaints == ()


HINTS_ENABLED = {
    "no annotations": ({}, False),
    "another annotation": ({"topology-hints": "enabled"}, False),
    "old: enabled": ({OLD_HINTS: "enabled"}, False),
    "old: aUto": ({OLD_HINTS: "aUto"}, False),
    "old: auto": ({OLD_HINTS: "auto"}, True),
    "old: Auto": ({OLD_HINTS: "Auto"}, True),
    "old: disabled": ({OLD_HINTS: "disabled"}, False),
    "old: Disabled": ({OLD_HINTS: "Disabled"}, False),
    "old: empty": ({OLD_HINTS: ""}, False),
    "mode: enabled": ({TOPOLOGY_MODE: "enabled"}, False),
    "mode: aUto": ({TOPOLOGY_MODE: "aUto"}, False),
    "mode: auto": ({TOPOLOGY_MODE: "auto"}, True),
    "mode: Auto": ({TOPOLOGY_MODE: "Auto"}, True),
    "mode: disabled": ({TOPOLOGY_MODE: "disabled"}, False),
    "mode: Disabled": ({TOPOLOGY_MODE: "Disabled"}, False),
    "mode: empty": ({TOPOLOGY_MODE: ""}, False),
    "mode: another maker's": ({TOPOLOGY_MODE: "example.com/auto"}, False),
    "old: auto hides mode: disabled": ({TOPOLOGY_MODE: "disabled", OLD_HINTS: "auto"}, True),
    "old: disabled hides mode: auto": ({TOPOLOGY_MODE: "auto", OLD_HINTS: "disabled"}, False),
}


@pytest.mark.parametrize("name", HINTS_ENABLED)
def test_hints_enabled(name: str) -> None:
    annotations, enabled = HINTS_ENABLED[name]
    assert hints_enabled(annotations) is enabled
    assert (read_policy(service(annotations)).policy == AutomaticHints()) is enabled


def test_different_hint_annotations_make_a_complaint() -> None:
    (complaint,) = read_policy(service({TOPOLOGY_MODE: "Auto", OLD_HINTS: "Disabled"})).complaints
    assert (complaint.code, complaint.facts["where"]) == (RoutingCode.OVERRULED, TOPOLOGY_MODE)


def test_same_policy_twice_makes_no_complaint() -> None:
    assert read_policy(service({TOPOLOGY_MODE: "Auto", OLD_HINTS: "auto"})).complaints == ()
    assert read_policy(service({TOPOLOGY_KEYS: '["r"]'}, topology_keys=("r",))).complaints == ()


ANNOTATIONS = [TOPOLOGY_KEYS, SAME_NODE, SAME_ZONE, SAME_REGION, OLD_HINTS, TOPOLOGY_MODE]
TUNING = [ALGORITHM, STARTING_THRESHOLD, PADDING, OVERLOAD_THRESHOLD]
VALUES = st.sampled_from(
    ["Balanced", "Prefer", "Require", "Auto", "[]", '["*"]', '["a","a"]', "3x", "50%", "optimal"]
) | st.text(max_size=20)


@given(
    st.dictionaries(st.sampled_from(ANNOTATIONS + TUNING), VALUES),
    st.none() | st.sampled_from(["PreferClose", "x"]),
    st.lists(st.text(max_size=5), max_size=20),
)
def test_any_annotations_are_read_without_error(
    annotations: dict[str, str], distribution: str | None, keys: list[str]
) -> None:
    reading = read_policy(service(annotations, traffic_distribution=distribution, topology_keys=tuple(keys)))
    assert all(complaint.remedy and complaint.blame for complaint in reading.complaints)
    assert bool(reading.source) is not isinstance(reading.policy, NoPolicy)
