"""Leader election on a real API server: acquire, renew, release, loss, and foreign edits."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector
from zonewise.kube.decide.election import NotLeader, Timing
from zonewise.kube.wire.errors import NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import CONFIG_MAPS, LEASES, Lease

QUICK = Timing(lease_seconds=12, renew_deadline_seconds=8, retry_seconds=0.2)
"""Short retry period but long deadlines, for a busy machine."""
SHORT = Timing(lease_seconds=3, renew_deadline_seconds=2, retry_seconds=0.2)


class Term:
    """Leader's work that only counts its starts and ends."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0

    async def lead(self) -> None:
        self.started += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    @property
    def running(self) -> bool:
        return self.started > self.ended


class Candidacy:
    """Context manager that runs a candidate in the background."""

    def __init__(self, client: Client, namespace: str, lead: Callable[[], Awaitable[None]], **options: Any) -> None:
        options.setdefault("timing", QUICK)
        self.leadership = LeaderElector(client, "x", namespace, **options)
        self._lead = lead

    async def __aenter__(self) -> LeaderElector:
        self._task = asyncio.create_task(self.leadership.run(self._lead))
        return self.leadership

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def stored(client: Client, namespace: str) -> Lease:
    return await client.get(LEASES, "x", namespace)


async def edit(client: Client, namespace: str, **spec: Any) -> None:
    await client.patch(LEASES, "x", MergePatch({"spec": spec}), namespace)


async def test_single_candidate_acquires_renews_and_releases(client: Client, namespace: str) -> None:
    term = Term()
    with capture_logs() as lines:
        async with Candidacy(client, namespace, term.lead, identity="me") as leadership:
            await eventually(lambda: term.running)
            first = await stored(client, namespace)
            assert first.spec.holder_identity == "me"
            assert first.spec.lease_duration_seconds == 12
            assert 0 < leadership.remaining_seconds() <= 8
            assert leadership.leads
            assert REGISTRY.get_sample_value("leader_election_master_status", {"name": "x"}) == 1

            async def renewed() -> bool:
                return (await stored(client, namespace)).spec.renew_time != first.spec.renew_time

            await eventually(renewed)
        assert (term.started, term.ended) == (1, 1)
        assert REGISTRY.get_sample_value("leader_election_master_status", {"name": "x"}) == 0
    released = await stored(client, namespace)
    assert not released.spec.holder_identity
    assert released.spec.lease_transitions == 0
    assert [line["event"] for line in lines] == ["leadership gained", "leadership released"]


async def test_released_lease_is_acquired_without_waiting(client: Client, namespace: str) -> None:
    first, second = Term(), Term()
    patient = Timing(lease_seconds=3600, renew_deadline_seconds=3000, retry_seconds=0.2)
    async with Candidacy(client, namespace, first.lead, identity="a", timing=patient):
        await eventually(lambda: first.running)
        candidate = Candidacy(client, namespace, second.lead, identity="b", timing=patient)
        leadership = await candidate.__aenter__()
        await eventually(lambda: leadership.holder == "a")
        assert not leadership.leads
    await eventually(lambda: second.running)
    lease = await stored(client, namespace)
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("b", 1)
    await candidate.__aexit__()


async def test_a_lease_whose_holder_died_is_taken_over_after_its_duration(client: Client, namespace: str) -> None:
    term = Term()
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 3, "renewTime": "2099-01-01T00:00:00.000000Z"}
    await client.create(LEASES, {"metadata": {"name": "x"}, "spec": spec}, namespace)
    async with Candidacy(client, namespace, term.lead, identity="me", timing=SHORT) as leadership:
        await eventually(lambda: leadership.holder == "dead")
        assert not leadership.leads, "the lease must be unchanged for 3 s first, whatever its timestamps say"
        await eventually(lambda: term.running)
        lease = await stored(client, namespace)
        assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("me", 1)


async def test_leader_stops_when_the_holder_changes(client: Client, namespace: str) -> None:
    term = Term()
    with capture_logs() as lines:
        async with Candidacy(client, namespace, term.lead, identity="me", timing=SHORT) as leadership:
            await eventually(lambda: term.running)
            await edit(client, namespace, holderIdentity="intruder", leaseDurationSeconds=1)
            await eventually(lambda: term.ended == 1)
            with pytest.raises(NotLeader, match=f"does not hold the lease {namespace}/x"):
                leadership.remaining_seconds()
            await eventually(lambda: term.started == 2)
    assert [line["event"] for line in lines] == [
        "leadership gained",
        "another process leads",
        "leadership lost",
        "leadership gained",
        "leadership released",
    ]
    assert lines[2]["holder"] == "intruder"


async def test_leader_recreates_its_deleted_lease_and_keeps_leading(client: Client, namespace: str) -> None:
    term = Term()
    with capture_logs() as lines:
        async with Candidacy(client, namespace, term.lead, identity="me"):
            await eventually(lambda: term.running)
            old = await stored(client, namespace)
            await client.delete(LEASES, "x", namespace)

            async def is_recreated() -> bool:
                with suppress(NotFound):
                    return (await stored(client, namespace)).metadata.uid != old.metadata.uid
                return False

            await eventually(is_recreated)
            assert (term.started, term.ended) == (1, 0)
    assert not [line for line in lines if "not found" in line.get("trouble", "")], "a deletion is not a failed call"


async def test_foreign_metadata_on_the_lease_is_kept(client: Client, namespace: str) -> None:
    term = Term()
    async with Candidacy(client, namespace, term.lead, identity="me"):
        await eventually(lambda: term.running)
        for _ in range(5):
            note = MergePatch({"metadata": {"annotations": {"note": "keep"}, "labels": {"team": "a"}}})
            before = await client.patch(LEASES, "x", note, namespace)

            async def renewed(renew_time: str | None = before.spec.renew_time) -> bool:
                return (await stored(client, namespace)).spec.renew_time != renew_time

            await eventually(renewed)
        lease = await stored(client, namespace)
        assert lease.metadata.annotations == {"note": "keep"}
        assert lease.metadata.labels == {"team": "a"}
        assert (term.started, term.ended) == (1, 0)


async def test_leader_reacquires_a_cleared_lease(client: Client, namespace: str) -> None:
    term = Term()
    async with Candidacy(client, namespace, term.lead, identity="me"):
        await eventually(lambda: term.running)
        await edit(client, namespace, holderIdentity=None)

        async def is_held_again() -> bool:
            return (await stored(client, namespace)).spec.holder_identity == "me"

        await eventually(is_held_again)
        assert (term.started, term.ended) == (1, 0)


async def test_wall_clock_jumps_have_no_effect(client: Client, namespace: str) -> None:
    """The leader's clock jumps back a year and stops; the candidate's is ten years ahead."""
    leading, waiting = Term(), Term()
    leaders_wall = datetime.now(UTC)
    async with Candidacy(client, namespace, leading.lead, identity="a", wall=lambda: leaders_wall):
        await eventually(lambda: leading.running)
        future = timedelta(days=3650)
        async with Candidacy(
            client, namespace, waiting.lead, identity="b", timing=SHORT, wall=lambda: datetime.now(UTC) + future
        ) as candidate:
            await eventually(lambda: candidate.holder == "a")
            leaders_wall -= timedelta(days=365)
            versions = set()

            async def renewed_often() -> bool:
                versions.add((await stored(client, namespace)).metadata.resource_version)
                return len(versions) > 20

            await eventually(renewed_often)
            assert (leading.started, leading.ended, waiting.started) == (1, 0, 0)


async def test_work_that_returns_ends_the_candidacy(client: Client, namespace: str) -> None:
    async def lead() -> None:
        await asyncio.sleep(0)

    await LeaderElector(client, "x", namespace, timing=QUICK).run(lead)
    assert not (await stored(client, namespace)).spec.holder_identity


async def test_failing_work_releases_the_lease_and_raises(client: Client, namespace: str) -> None:
    async def lead() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await LeaderElector(client, "x", namespace, timing=QUICK).run(lead)
    assert not (await stored(client, namespace)).spec.holder_identity


async def test_lease_is_renewed_during_slow_shutdown(client: Client, namespace: str) -> None:
    """On shutdown the leader cleans up while renewing, and then releases."""
    allowed, renewals = asyncio.Event(), []

    async def lead() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(2):
                before = (await stored(client, namespace)).spec
                assert before.holder_identity == "me"

                async def renewed(renew_time: str | None = before.renew_time) -> bool:
                    return (await stored(client, namespace)).spec.renew_time != renew_time

                await eventually(renewed)
                renewals.append(before.renew_time)
            allowed.set()

    candidacy = Candidacy(client, namespace, lead, identity="me")
    leadership = await candidacy.__aenter__()
    await eventually(lambda: leadership.leads)
    await candidacy.__aexit__()
    assert allowed.is_set()
    assert len(renewals) == 2
    assert not (await stored(client, namespace)).spec.holder_identity


async def test_guarded_client_writes_only_while_leading(client: Client, namespace: str) -> None:
    term = Term()
    candidacy = Candidacy(client, namespace, term.lead)
    guarded = client.guarded(candidacy.leadership)
    body = {"metadata": {"generateName": "w-"}}
    with pytest.raises(NotLeader):
        await guarded.create(CONFIG_MAPS, body, namespace)
    async with candidacy:
        await eventually(lambda: term.running)
        await guarded.create(CONFIG_MAPS, body, namespace)
    with pytest.raises(NotLeader):
        await guarded.create(CONFIG_MAPS, body, namespace)
    listing = await client.list(CONFIG_MAPS, namespace)
    assert len([config_map for config_map in listing.items if config_map.metadata.name.startswith("w-")]) == 1
    assert (await guarded.list(CONFIG_MAPS, namespace)).items, "reads need no lease"


@pytest.mark.parametrize("in_a_group", [False, True])
async def test_not_leader_error_in_the_work_keeps_the_candidacy(
    client: Client, namespace: str, in_a_group: bool
) -> None:
    """Loss detected by renewal or by a write: the candidate continues."""
    started = 0
    again = asyncio.Event()
    leadership = LeaderElector(client, "x", namespace, timing=SHORT)

    async def lead() -> None:
        nonlocal started
        started += 1
        if started == 2:
            again.set()
            await asyncio.Event().wait()
        leadership._election.resign()  # as after a long pause of the process
        if not in_a_group:
            leadership.remaining_seconds()
        async with asyncio.TaskGroup() as group:
            group.create_task(check())

    async def check() -> None:
        """Runs in the next iteration of the event loop: a thread may come after the elector has got the lease again."""
        leadership.remaining_seconds()

    running = asyncio.create_task(leadership.run(lead))
    async with asyncio.timeout(60):
        await again.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_missing_namespace_is_retried_at_the_retry_period(client: Client) -> None:
    term = Term()
    failures = {"name": "x"}
    before = REGISTRY.get_sample_value("zonewise_lease_errors_total", failures) or 0

    def failed() -> float:
        return (REGISTRY.get_sample_value("zonewise_lease_errors_total", failures) or 0) - before

    with capture_logs() as lines:
        async with Candidacy(client, "no-such-namespace", term.lead) as leadership:
            await eventually(lambda: failed() >= 3)
            assert not leadership.leads
    assert term.started == 0
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["lease call failed"], "logged once"
    assert "no-such-namespace" in lines[0]["trouble"]


async def test_many_candidates_lead_one_at_a_time(client: Client, namespace: str) -> None:
    """Each leads in turn, after the previous leader released."""
    acting: set[int] = set()
    turns: list[int] = []

    async def candidate(number: int) -> None:
        async def lead() -> None:
            assert not acting, f"{acting} already lead"
            acting.add(number)
            await asyncio.sleep(0.05)
            acting.remove(number)
            turns.append(number)

        await LeaderElector(client, "x", namespace, identity=f"c{number}", timing=QUICK).run(lead)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(candidate(number))
    assert sorted(turns) == [0, 1, 2, 3, 4]
