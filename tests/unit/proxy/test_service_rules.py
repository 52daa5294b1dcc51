"""What a decider remembers between two decisions: nothing of one that failed."""

from __future__ import annotations

import msgspec
import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Key
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import NodePlace
from zonewise.proxy.wire.family import IPV4

WEB = Key("shop", "web")
PREFER = {"endpointslice.kubernetes.io/same-zone": "Prefer"}


def test_a_decision_that_fails_leaves_the_last_one() -> None:
    decider, place = ServiceRules((IPV4,), all_services=True), NodePlace("a1", cluster())
    asked = service(annotations=PREFER)
    decided = decider.decide(WEB, asked, [slice_of(endpoint("10.1.0.1"))], place)
    broken = msgspec.structs.replace(slice_of(endpoint("10.1.0.2")), endpoints=(None,))
    with pytest.raises(AttributeError):
        decider.decide(WEB, asked, [broken], place)
    assert decider.rules[WEB][IPV4] == decided[IPV4]
    assert WEB in decider.by_labels
    gone = decider.decide(WEB, None, [], place)
    assert gone[IPV4] == dict.fromkeys(decided[IPV4])
    assert (decider.rules, decider.by_labels) == ({}, set())
