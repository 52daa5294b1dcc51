"""Charges under faults that no real server makes on demand: conflicts, lost answers, cancelled requests."""

import asyncio
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.fake_store import OTHER, WEB, ask, fake_store, fresh, outcomes, request
from zonewise.disruption.decide import status
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeResult
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry
from zonewise.disruption.decide.pods import PodStage
from zonewise.disruption.webhook.charger import MOST_ATTEMPTS, Charger
from zonewise.kube.wire.errors import ApiError, Conflict, Forbidden, Unreachable

RESERVED = LedgerEntry(uid="uid-a0", name="a0", domain="a", owner="deployment", time="now", source=ChargeSource.ROLLOUT)


async def test_concurrent_requests_share_one_write() -> None:
    store, cluster = fake_store()
    answers = await ask(store, *(request(cluster, name) for name in ("a0", "b0", "c0")))
    assert outcomes(answers) == [ChargeResult.CHARGED] * 3
    assert (store.writes, store.reads) == (1, 0)
    assert list(store.stored["web"].ledger) == ["uid-a0", "uid-b0", "uid-c0"]


async def test_each_request_sees_the_charges_before_it() -> None:
    store, cluster = fake_store()
    answers = await ask(store, *(request(cluster, name) for name in ("a0", "a1", "a0", "b0")))
    assert outcomes(answers) == [ChargeResult.CHARGED, ChargeResult.DENIED, ChargeResult.ALLOWED, ChargeResult.CHARGED]
    assert (store.writes, store.reads) == (1, 1)  # a refusal is looked at in the store, once for all


async def test_stale_cache_does_not_refuse() -> None:
    store, cluster = fake_store()
    store.cached["web"] = fresh(cluster.charged("a1"))
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.CHARGED]


async def test_stale_cache_does_not_allow() -> None:
    store, cluster = fake_store()
    store.stored["web"], store.cached["web"] = fresh(cluster.charged("a1")), fresh(cluster)
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.DENIED]
    assert store.writes == 0


async def test_stale_charge_is_not_relied_on() -> None:
    """Another request made it and has taken it back since."""
    store, cluster = fake_store()
    store.cached["web"] = fresh(cluster.charged("a0"))
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.CHARGED]
    assert store.writes == 1


async def test_reserved_pod_costs_no_call() -> None:
    store, cluster = fake_store()
    store.stored["web"] = status.charged(WEB, store.stored["web"], [RESERVED])
    assert outcomes(await ask(store, request(cluster, "a0", reservation="now"))) == [ChargeResult.ALLOWED]
    assert (store.writes, store.reads) == (0, 0)


async def test_uncached_reservation_costs_one_read() -> None:
    store, cluster = fake_store()
    store.cached["web"] = store.stored["web"]
    store.stored["web"] = status.charged(WEB, store.stored["web"], [RESERVED])
    assert outcomes(await ask(store, request(cluster, "a0", reservation="now"))) == [ChargeResult.ALLOWED]
    assert (store.writes, store.reads) == (0, 1)


@pytest.mark.parametrize("stage", [PodStage.PENDING, PodStage.RUNNING])
async def test_unready_pod_is_noted_and_never_counts_as_healthy(stage: PodStage) -> None:
    """It takes nothing from the numbers; but if an API server is slow it is ready by the time it goes."""
    store, cluster = fake_store()
    starting = msgspec.structs.replace(cluster.pods["a0"], ready=False, stage=stage)
    cluster = cluster.with_pods(starting)
    store.stored["web"] = before = fresh(cluster)
    again = request(cluster, "a0")
    assert outcomes(await ask(store, again, again)) == [ChargeResult.CHARGED, ChargeResult.ALLOWED]
    assert store.stored["web"] == replace(before, ledger={"uid-a0": store.stored["web"].ledger["uid-a0"]})
    ready = cluster.with_pods(msgspec.structs.replace(starting, ready=True, stage=PodStage.RUNNING))
    assert ready.status(WEB).numbers.domains["a"].healthy == 3
    assert ready.charged("a0").status(WEB).numbers.domains["a"].healthy == 2


@pytest.mark.parametrize("error", [Conflict("lost"), Unreachable("no answer")], ids=["conflict", "unreachable"])
async def test_lost_write_is_retried(error: ApiError) -> None:
    store, cluster = fake_store()
    store.before = [error, error]
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.CHARGED]
    assert store.writes == 1


async def test_requests_during_a_conflict_join_the_retry() -> None:
    store, cluster = fake_store()
    charges = Charger(store, chance=lambda: 0.0)
    joined: list[asyncio.Task[list[ChargeAnswer]]] = []

    def meanwhile() -> None:
        store.meanwhile = lambda: None
        joined.extend(asyncio.create_task(charges.charge(request(cluster, name), [WEB.key])) for name in ("a1", "b0"))

    store.meanwhile, store.before = meanwhile, [Conflict("lost")]
    first = await charges.charge(request(cluster, "a0"), [WEB.key])
    assert outcomes([first, *[await answer_list for answer_list in joined]]) == [
        ChargeResult.CHARGED,
        ChargeResult.DENIED,
        ChargeResult.CHARGED,
    ]
    assert store.writes == 1
    assert list(store.stored["web"].ledger) == ["uid-a0", "uid-b0"]


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """Time advances at once when no task is ready."""

    seconds = 0.0

    def time(self) -> float:
        return self.seconds

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined] # asyncio's own
            self.seconds = max(self.seconds, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()


def test_requests_gather_after_a_conflict() -> None:
    """A write takes 10 ms, one was lost and one stored: for the next 7.5 ms nothing is written, then for all at once."""
    store, cluster = fake_store()
    store.write_seconds, store.before = 0.01, [Conflict("lost")]

    async def run() -> tuple[list[list[ChargeAnswer]], float]:
        charges, clock = Charger(store, chance=lambda: 0.0), asyncio.get_running_loop().time
        first = await charges.charge(request(cluster, "a0"), [WEB.key])
        second = asyncio.create_task(charges.charge(request(cluster, "b0"), [WEB.key]))
        await asyncio.sleep(0.005)
        third = await charges.charge(request(cluster, "c0"), [WEB.key])
        answers = [first, await second, third]
        await asyncio.sleep(1)
        begin = clock()
        return [*answers, await charges.charge(request(cluster, "a0", time="again"), [WEB.key])], clock() - begin

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        answers, later_seconds = runner.run(run())
    assert outcomes(answers) == [ChargeResult.CHARGED] * 3 + [ChargeResult.ALLOWED]
    assert store.writes == 3, "the second and the third shared one"
    assert later_seconds == pytest.approx(0.01), "without contention there is no delay"


async def test_stored_write_without_an_answer_is_found() -> None:
    """The write was stored without an answer: the budget is read, and the pod is charged once."""
    store, cluster = fake_store()
    store.after = [Unreachable("no answer")]
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.ALLOWED]
    assert store.writes == 1
    assert list(store.stored["web"].ledger) == ["uid-a0"]


async def test_endless_conflicts_are_busy() -> None:
    store, cluster = fake_store()
    store.before = [Conflict("lost") for _ in range(20)]
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.BUSY]
    store.before = [Forbidden("not yours")]
    assert outcomes(await ask(store, request(cluster, "a0"))) == [ChargeResult.BUSY]


async def test_dry_run_writes_nothing() -> None:
    store, cluster = fake_store()
    assert outcomes(await ask(store, request(cluster, "a0", dry_run=True))) == [ChargeResult.ALLOWED]
    store.stored["web"] = fresh(cluster.charged("a1"))
    assert outcomes(await ask(store, request(cluster, "a0", dry_run=True))) == [ChargeResult.DENIED]
    assert store.writes == 0


async def test_denial_by_the_second_budget_refunds_the_first() -> None:
    """Both looked free; during the first write another client was charged to the second."""
    store, cluster = fake_store()

    def another_client() -> None:
        store.stored["web"] = fresh(cluster.charged("a1"))

    store.cached["web"], store.meanwhile = store.stored["web"], another_client
    answers = await ask(store, request(cluster, "a0", WEB, OTHER), budgets=(WEB, OTHER))
    assert outcomes(answers) == [ChargeResult.DENIED]
    assert not store.stored["other"].ledger
    assert list(store.stored["web"].ledger) == ["uid-a1"]


async def test_busy_second_budget_refunds_the_first() -> None:
    store, cluster = fake_store()
    lost = [Conflict("conflict") for _ in range(MOST_ATTEMPTS)]

    def conflict_again() -> None:
        if store.writes and lost:
            store.before.append(lost.pop())

    store.meanwhile = conflict_again
    answers = await ask(store, request(cluster, "a0", WEB, OTHER), budgets=(WEB, OTHER))
    assert outcomes(answers) == [ChargeResult.BUSY]
    assert not store.stored["other"].ledger
    assert not store.stored["web"].ledger


async def test_shared_charge_is_not_refunded() -> None:
    store, cluster = fake_store()
    one = request(cluster, "a0", WEB, OTHER, time="one")
    (answer,) = await ask(store, one, budgets=(OTHER,))
    two = request(cluster, "a0", WEB, OTHER, time="two")
    (shared,) = await ask(store, two, budgets=(OTHER,))
    assert (answer[0].outcome, shared[0].outcome) == (ChargeResult.CHARGED, ChargeResult.ALLOWED)
    store.stored["web"] = fresh(cluster.charged("a1"))
    charges = Charger(store, chance=lambda: 0.0)
    await charges._refund(one, [OTHER.key], answer)
    assert list(store.stored["other"].ledger) == ["uid-a0"]


async def test_charge_of_a_cancelled_request_is_refunded() -> None:
    store, cluster = fake_store()
    asking = asyncio.create_task(ask(store, request(cluster, "a0")))
    store.meanwhile = lambda: asking.cancel() and None
    with pytest.raises(asyncio.CancelledError):
        await asking
    store.meanwhile = lambda: None
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.writes == 2
    assert not store.stored["web"].ledger


async def test_request_cancelled_during_a_conflict_is_not_charged() -> None:
    """A server that is slow loses callers: to charge for them, and to give that back, would make it slower."""
    store, cluster = fake_store()
    charges = Charger(store, chance=lambda: 0.0)
    left, stays = (asyncio.create_task(charges.charge(request(cluster, name), [WEB.key])) for name in ("a0", "b0"))

    def meanwhile() -> None:
        left.cancel()

    store.meanwhile, store.before = meanwhile, [Conflict("lost")]
    assert [answer.outcome for answer in await stays] == [ChargeResult.CHARGED]
    assert list(store.stored["web"].ledger) == ["uid-b0"]
    assert store.writes == 1


async def test_no_call_without_waiting_requests() -> None:
    store, cluster = fake_store()
    asking = asyncio.create_task(ask(store, request(cluster, "a0")))
    store.meanwhile, store.before = lambda: asking.cancel() and None, [Conflict("lost") for _ in range(9)]
    with pytest.raises(asyncio.CancelledError):
        await asking
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(store.before), store.reads) == (8, 0)


async def test_charge_of_a_cancelled_request_stays_for_another() -> None:
    store, cluster = fake_store()
    charges = Charger(store, chance=lambda: 0.0)
    left = asyncio.create_task(charges.charge(request(cluster, "a0", time="one"), [WEB.key]))
    joined: list[asyncio.Task[list[ChargeAnswer]]] = []

    def meanwhile() -> None:
        store.meanwhile = lambda: None
        left.cancel()
        joined.append(asyncio.create_task(charges.charge(request(cluster, "a0", time="two"), [WEB.key])))

    store.meanwhile = meanwhile
    with pytest.raises(asyncio.CancelledError):
        await left
    assert [answer.outcome for answer in await joined[0]] == [ChargeResult.ALLOWED]
    for _ in range(20):
        await asyncio.sleep(0)
    assert [entry.time for entry in store.stored["web"].ledger.values()] == ["two"]


@pytest.mark.parametrize(
    "reservation", ["", "long ago"], ids=["another client", "the leader, with an older reservation"]
)
async def test_reservation_that_another_client_uses_is_shared(reservation: str) -> None:
    """The leader refunds its reservation when its own eviction is refused, unless another client uses it."""
    store, cluster = fake_store()
    store.stored["web"] = status.charged(WEB, store.stored["web"], [RESERVED])
    again = request(cluster, "a0", time="drain", reservation=reservation)
    assert outcomes(await ask(store, again)) == [ChargeResult.ALLOWED]
    (now,) = store.stored["web"].ledger.values()
    assert (now.source, now.time) == (ChargeSource.EVICTION, "drain")


@given(st.lists(st.sampled_from(["a0", "a1", "a2", "b0", "b1", "c0"]), max_size=12), st.data())
def test_never_more_than_the_budget_allows(names: list[str], data: st.DataObject) -> None:
    """With stale caches and any batches: one pod per zone is charged, and every allowed pod is charged."""
    store, cluster = fake_store()
    cached = data.draw(st.sampled_from([(), ("a0",), ("b1",)]))
    store.cached["web"] = fresh(cluster.charged(*cached))
    store.before = [Conflict("lost") for _ in range(data.draw(st.integers(0, 3)))]
    split = data.draw(st.integers(0, len(names)))

    async def run() -> list[list[ChargeAnswer]]:
        stamped = [request(cluster, name, time=f"{name}-{index}") for index, name in enumerate(names)]
        return [*await ask(store, *stamped[:split]), *await ask(store, *stamped[split:])]

    answers = asyncio.run(run())
    passed = {
        name
        for name, answer_list in zip(names, answers, strict=True)
        if answer_list[-1].outcome in {ChargeResult.ALLOWED, ChargeResult.CHARGED}
    }
    ledger = store.stored["web"].ledger
    assert {f"uid-{name}" for name in passed} == set(ledger)
    zones = [entry.domain for entry in ledger.values()]
    assert len(zones) == len(set(zones))


@given(
    st.lists(st.sampled_from(["a0", "a1", "a2", "b0", "b1", "c0"]), max_size=12),
    st.sampled_from([(), ("a0",), ("a1", "b0")]),
    st.integers(0, 3),
)
def test_all_budgets_are_charged_or_none(names: list[str], taken: tuple[str, ...], conflicts: int) -> None:
    """Though the second was charged by others meanwhile. What two relied on stays, and can only expire."""
    store, cluster = fake_store()
    store.cached["web"], store.stored["web"] = fresh(cluster), fresh(cluster.charged(*taken))
    store.before = [Conflict("lost") for _ in range(conflicts)]

    async def run() -> list[list[ChargeAnswer]]:
        stamped = [request(cluster, name, WEB, OTHER, time=f"{name}-{index}") for index, name in enumerate(names)]
        return await ask(store, *stamped, budgets=(WEB, OTHER))

    results = zip(names, outcomes(asyncio.run(run())), strict=True)
    passed = {f"uid-{name}" for name, outcome in results if outcome not in {ChargeResult.DENIED, ChargeResult.BUSY}}
    for ledger in (store.stored["web"].ledger, store.stored["other"].ledger):
        assert passed <= set(ledger)
        assert max(Counter(entry.domain for entry in ledger.values()).values(), default=0) <= 1
    left_over = store.stored["other"].ledger.keys() - passed
    assert all(names.count(uid.removeprefix("uid-")) > 1 for uid in left_over)
