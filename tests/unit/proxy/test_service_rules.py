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
