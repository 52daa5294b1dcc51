"""Webhooks trust published numbers only while the lease is renewed."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.disruption import app
from zonewise.disruption.webhook.leader_monitor import SILENT_SECONDS, LeaderMonitor
from zonewise.errors import ZonewiseError
from zonewise.kube.watch.informers import Caches
from zonewise.objects import Key, Lease
from zonewise.objects.change import Change
from zonewise.objects.coordination import LeaseSpec

LEASE = Key("kube-system", "zonewise-disruption")


class Listener:
    def __init__(self) -> None:
        self.now = 1000.0
        client: Any = None
        self.leader = LeaderMonitor(Caches(client), LEASE, clock=lambda: self.now)

    def deliver_pods(self, old: LeaseSpec | None, new: LeaseSpec | None) -> None:
        old_lease, new_lease = (None if spec is None else Lease(spec=spec) for spec in (old, new))
        self.leader.watch.publish([Change(LEASE, old_lease, new_lease)])


FIRST, SECOND = (LeaseSpec(holder_identity="leader", renew_time=f"2030-01-01T00:00:0{number}Z") for number in (1, 2))
GIVEN_BACK = LeaseSpec(holder_identity="", renew_time="2030-01-01T00:00:03Z")


def test_existing_lease_proves_nothing() -> None:
    """Its holder may have been killed an hour ago; a webhook that is restarted all the time would never notice."""
    listener = Listener()
    listener.deliver_pods(None, FIRST)
    assert listener.leader.undecided
    assert "not known yet" in listener.leader.trouble()
    listener.now += SILENT_SECONDS + 1
    assert not listener.leader.undecided
    assert "is not running" in listener.leader.trouble()


def test_renewed_lease_is_trusted_for_a_while() -> None:
    listener = Listener()
    listener.deliver_pods(None, FIRST)
    listener.now += 3
    listener.deliver_pods(FIRST, SECOND)
    assert not listener.leader.undecided
    assert listener.leader.trouble() == ""
    listener.now += SILENT_SECONDS + 1
    assert "was not renewed for 31 s" in listener.leader.trouble()
    listener.deliver_pods(FIRST, SECOND)
    assert listener.leader.trouble() == ""


@pytest.mark.parametrize(("old", "new"), [(FIRST, FIRST), (FIRST, GIVEN_BACK), (FIRST, None)])
def test_changes_that_are_no_renewal(old: LeaseSpec, new: LeaseSpec | None) -> None:
    listener = Listener()
    listener.deliver_pods(old, new)
    assert listener.leader.undecided


class BlindInformers:
    """`blind` at every call but the fourth."""

    def __init__(self) -> None:
        self.calls = 0

    @property
    def blind(self) -> bool:
        self.calls += 1
        return self.calls != 4


async def test_leader_without_working_watches_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(app, "SILENT_SECONDS", 0.05)
    informers: Any = BlindInformers()
    with pytest.raises(ZonewiseError, match="the lease is given back"):
        await app._exit_when_blind(informers)
    assert informers.calls >= 4 + 5
