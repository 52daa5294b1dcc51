"""State between two decisions: a failed one leaves it unchanged."""

from __future__ import annotations

import msgspec
import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Key
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.wire.family import IPV4

WEB = Key("shop", "web")
OTHER_PROXY = {"service.kubernetes.io/service-proxy-name": "other"}
PREFER = {"endpointslice.kubernetes.io/same-zone": "Prefer"}


def test_failed_decision_keeps_the_previous_rules() -> None:
    service_rules, location = ServiceRules((IPV4,), all_services=True), NodeLocation("a1", cluster())
    web = service(annotations=PREFER)
    decided = service_rules.decide(WEB, web, [slice_of(endpoint("10.1.0.1"))], location)
    broken = msgspec.structs.replace(slice_of(endpoint("10.1.0.2")), endpoints=(None,))
    with pytest.raises(AttributeError):
        service_rules.decide(WEB, web, [broken], location)
    assert service_rules.rules[WEB][IPV4] == decided[IPV4]
    assert WEB in service_rules.by_labels
    deleted = service_rules.decide(WEB, None, [], location)
    assert deleted[IPV4] == dict.fromkeys(decided[IPV4])
    assert (service_rules.rules, service_rules.by_labels) == ({}, set())


def test_services_with_external_ips_are_known_while_they_are_served() -> None:
    service_rules, location = ServiceRules((IPV4,), all_services=True), NodeLocation("a1", cluster())
    other = service(externalIPs=["1.2.3.4"])
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, labels=OTHER_PROXY))
    steps = [
        (service(externalIPs=["1.2.3.4"]), {WEB}),
        (service(), set()),
        (service(externalIPs=["1.2.3.5"]), {WEB}),
        (other, set()),
        (service(externalIPs=["1.2.3.5"]), {WEB}),
        (None, set()),
    ]
    for web, known in steps:
        service_rules.decide(WEB, web, [], location)
        assert service_rules.with_external_ips == known
