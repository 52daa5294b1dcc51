"""Charging under faults that no real server makes on demand: lost races, lost answers, callers that have left."""

import asyncio
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.charge_store import OTHER, WEB, ask, fresh, outcomes, request, store
from zonewise.disruption.decide import status
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeResult
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry
from zonewise.disruption.decide.pods import PodStage
from zonewise.disruption.webhook.charger import MOST_ATTEMPTS, Charger
from zonewise.kube.wire.errors import ApiError, Conflict, Forbidden, Unreachable

RESERVED = LedgerEntry(uid="uid-a0", name="a0", domain="a", owner="deployment", time="now", source=ChargeSource.ROLLOUT)


async def test_all_who_come_at_once_share_one_write() -> None:
    kept, world = store()
    answers = await ask(kept, *(request(world, name) for name in ("a0", "b0", "c0")))
    assert outcomes(answers) == [ChargeResult.CHARGED] * 3
    assert (kept.writes, kept.reads) == (1, 0)
    assert list(kept.stored["web"].ledger) == ["uid-a0", "uid-b0", "uid-c0"]


async def test_each_sees_what_those_before_it_took() -> None:
    kept, world = store()
    answers = await ask(kept, *(request(world, name) for name in ("a0", "a1", "a0", "b0")))
    assert outcomes(answers) == [ChargeResult.CHARGED, ChargeResult.DENIED, ChargeResult.ALLOWED, ChargeResult.CHARGED]
    assert (kept.writes, kept.reads) == (1, 1)  # a refusal is looked at in the store, once for all


async def test_old_news_refuse_nobody() -> None:
    kept, world = store()
    kept.seen["web"] = fresh(world.charged("a1"))
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.CHARGED]


async def test_old_news_allow_nobody() -> None:
    kept, world = store()
    kept.stored["web"], kept.seen["web"] = fresh(world.charged("a1")), fresh(world)
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.DENIED]
    assert kept.writes == 0


async def test_an_old_charge_is_not_believed() -> None:
    """Another request made it and has taken it back since."""
    kept, world = store()
    kept.seen["web"] = fresh(world.charged("a0"))
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.CHARGED]
    assert kept.writes == 1


async def test_what_the_leader_reserved_goes_without_a_call() -> None:
    kept, world = store()
    kept.stored["web"] = status.charged(WEB, kept.stored["web"], [RESERVED])
    assert outcomes(await ask(kept, request(world, "a0", reservation="now"))) == [ChargeResult.ALLOWED]
    assert (kept.writes, kept.reads) == (0, 0)


async def test_a_reservation_not_heard_of_costs_a_read_and_no_write() -> None:
    kept, world = store()
    kept.seen["web"] = kept.stored["web"]
    kept.stored["web"] = status.charged(WEB, kept.stored["web"], [RESERVED])
    assert outcomes(await ask(kept, request(world, "a0", reservation="now"))) == [ChargeResult.ALLOWED]
    assert (kept.writes, kept.reads) == (0, 1)


@pytest.mark.parametrize("stage", [PodStage.PENDING, PodStage.RUNNING])
async def test_a_pod_that_is_not_ready_goes_and_is_never_counted_again(stage: PodStage) -> None:
    """It takes nothing from the numbers; but if an API server is slow it is ready by the time it goes."""
    kept, world = store()
    starting = msgspec.structs.replace(world.pods["a0"], ready=False, stage=stage)
    world = world.with_pods(starting)
    kept.stored["web"] = before = fresh(world)
    asked = request(world, "a0")
    assert outcomes(await ask(kept, asked, asked)) == [ChargeResult.CHARGED, ChargeResult.ALLOWED]
    assert kept.stored["web"] == replace(before, ledger={"uid-a0": kept.stored["web"].ledger["uid-a0"]})
    ready = world.with_pods(msgspec.structs.replace(starting, ready=True, stage=PodStage.RUNNING))
    assert ready.status(WEB).numbers.domains["a"].healthy == 3
    assert ready.charged("a0").status(WEB).numbers.domains["a"].healthy == 2


@pytest.mark.parametrize("error", [Conflict("lost"), Unreachable("no answer")], ids=["conflict", "unreachable"])
async def test_who_loses_works_it_out_again(error: ApiError) -> None:
    kept, world = store()
    kept.before = [error, error]
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.CHARGED]
    assert kept.writes == 1


async def test_who_comes_while_a_race_is_lost_joins_the_next_attempt() -> None:
    kept, world = store()
    charges = Charger(kept, chance=lambda: 0.0)
    came: list[asyncio.Task[list[ChargeAnswer]]] = []

    def meanwhile() -> None:
        kept.meanwhile = lambda: None
        came.extend(asyncio.create_task(charges.charge(request(world, name), [WEB.key])) for name in ("a1", "b0"))

    kept.meanwhile, kept.before = meanwhile, [Conflict("lost")]
    first = await charges.charge(request(world, "a0"), [WEB.key])
    assert outcomes([first, *[await each for each in came]]) == [
        ChargeResult.CHARGED,
        ChargeResult.DENIED,
        ChargeResult.CHARGED,
    ]
    assert kept.writes == 1
    assert list(kept.stored["web"].ledger) == ["uid-a0", "uid-b0"]


class OnPaper(asyncio.SelectorEventLoop):
    """Time passes when nobody has anything else to do, and then at once."""

    seconds = 0.0

    def time(self) -> float:
        return self.seconds

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.seconds = max(self.seconds, self._scheduled[0]._when)
        super()._run_once()


def test_after_a_lost_race_those_who_come_gather() -> None:
    """A write takes 10 ms, one was lost and one stored: for the next 7.5 ms nothing is written, then for all at once."""
    kept, world = store()
    kept.write_seconds, kept.before = 0.01, [Conflict("lost")]

    async def run() -> tuple[list[list[ChargeAnswer]], float]:
        charges, clock = Charger(kept, chance=lambda: 0.0), asyncio.get_running_loop().time
        first = await charges.charge(request(world, "a0"), [WEB.key])
        second = asyncio.create_task(charges.charge(request(world, "b0"), [WEB.key]))
        await asyncio.sleep(0.005)
        third = await charges.charge(request(world, "c0"), [WEB.key])
        answers = [first, await second, third]
        await asyncio.sleep(1)
        begin = clock()
        return [*answers, await charges.charge(request(world, "a0", time="again"), [WEB.key])], clock() - begin

    with asyncio.Runner(loop_factory=OnPaper) as runner:
        answers, later_seconds = runner.run(run())
    assert outcomes(answers) == [ChargeResult.CHARGED] * 3 + [ChargeResult.ALLOWED]
    assert kept.writes == 3, "the second and the third shared one"
    assert later_seconds == pytest.approx(0.01), "who comes when all is quiet does not wait"


async def test_an_answer_that_was_lost_is_found_in_the_store() -> None:
    """The write was stored, nobody said so: read, and the pod is charged once."""
    kept, world = store()
    kept.after = [Unreachable("no answer")]
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.ALLOWED]
    assert kept.writes == 1
    assert list(kept.stored["web"].ledger) == ["uid-a0"]


async def test_who_always_loses_is_told_to_come_again() -> None:
    kept, world = store()
    kept.before = [Conflict("lost") for _ in range(20)]
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.BUSY]
    kept.before = [Forbidden("not yours")]
    assert outcomes(await ask(kept, request(world, "a0"))) == [ChargeResult.BUSY]


async def test_a_dry_run_writes_nothing() -> None:
    kept, world = store()
    assert outcomes(await ask(kept, request(world, "a0", dry_run=True))) == [ChargeResult.ALLOWED]
    kept.stored["web"] = fresh(world.charged("a1"))
    assert outcomes(await ask(kept, request(world, "a0", dry_run=True))) == [ChargeResult.DENIED]
    assert kept.writes == 0


async def test_what_one_budget_charged_comes_back_when_the_next_refuses() -> None:
    """Both looked fine; while the first was written, somebody took the last of the second."""
    kept, world = store()

    def somebody_else() -> None:
        kept.stored["web"] = fresh(world.charged("a1"))

    kept.seen["web"], kept.meanwhile = kept.stored["web"], somebody_else
    answers = await ask(kept, request(world, "a0", WEB, OTHER), budgets=(WEB, OTHER))
    assert outcomes(answers) == [ChargeResult.DENIED]
    assert not kept.stored["other"].ledger
    assert list(kept.stored["web"].ledger) == ["uid-a1"]


async def test_what_one_budget_charged_comes_back_when_the_next_can_not_be_asked() -> None:
    kept, world = store()
    lost = [Conflict("somebody wrote first") for _ in range(MOST_ATTEMPTS)]

    def others_are_faster() -> None:
        if kept.writes and lost:
            kept.before.append(lost.pop())

    kept.meanwhile = others_are_faster
    answers = await ask(kept, request(world, "a0", WEB, OTHER), budgets=(WEB, OTHER))
    assert outcomes(answers) == [ChargeResult.BUSY]
    assert not kept.stored["other"].ledger
    assert not kept.stored["web"].ledger


async def test_a_charge_that_two_rely_on_is_not_taken_back_by_one() -> None:
    kept, world = store()
    one = request(world, "a0", WEB, OTHER, time="one")
    (answer,) = await ask(kept, one, budgets=(OTHER,))
    two = request(world, "a0", WEB, OTHER, time="two")
    (shared,) = await ask(kept, two, budgets=(OTHER,))
    assert (answer[0].outcome, shared[0].outcome) == (ChargeResult.CHARGED, ChargeResult.ALLOWED)
    kept.stored["web"] = fresh(world.charged("a1"))
    charges = Charger(kept, chance=lambda: 0.0)
    await charges._refund(one, [OTHER.key], answer)
    assert list(kept.stored["other"].ledger) == ["uid-a0"]


async def test_a_charge_for_somebody_who_left_is_taken_back() -> None:
    kept, world = store()
    asking = asyncio.create_task(ask(kept, request(world, "a0")))
    kept.meanwhile = lambda: asking.cancel() and None
    with pytest.raises(asyncio.CancelledError):
        await asking
    kept.meanwhile = lambda: None
    for _ in range(20):
        await asyncio.sleep(0)
    assert kept.writes == 2
    assert not kept.stored["web"].ledger


async def test_who_left_while_a_race_was_lost_is_not_charged() -> None:
    """A server that is slow loses callers: to charge for them, and to give that back, would make it slower."""
    kept, world = store()
    charges = Charger(kept, chance=lambda: 0.0)
    left, stays = (asyncio.create_task(charges.charge(request(world, name), [WEB.key])) for name in ("a0", "b0"))

    def meanwhile() -> None:
        left.cancel()

    kept.meanwhile, kept.before = meanwhile, [Conflict("lost")]
    assert [answer.outcome for answer in await stays] == [ChargeResult.CHARGED]
    assert list(kept.stored["web"].ledger) == ["uid-b0"]
    assert kept.writes == 1


async def test_nothing_is_asked_for_nobody() -> None:
    kept, world = store()
    asking = asyncio.create_task(ask(kept, request(world, "a0")))
    kept.meanwhile, kept.before = lambda: asking.cancel() and None, [Conflict("lost") for _ in range(9)]
    with pytest.raises(asyncio.CancelledError):
        await asking
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(kept.before), kept.reads) == (8, 0)


async def test_a_charge_for_somebody_who_left_stays_for_who_asks_meanwhile() -> None:
    kept, world = store()
    charges = Charger(kept, chance=lambda: 0.0)
    left = asyncio.create_task(charges.charge(request(world, "a0", time="one"), [WEB.key]))
    came: list[asyncio.Task[list[ChargeAnswer]]] = []

    def meanwhile() -> None:
        kept.meanwhile = lambda: None
        left.cancel()
        came.append(asyncio.create_task(charges.charge(request(world, "a0", time="two"), [WEB.key])))

    kept.meanwhile = meanwhile
    with pytest.raises(asyncio.CancelledError):
        await left
    assert [answer.outcome for answer in await came[0]] == [ChargeResult.ALLOWED]
    for _ in range(20):
        await asyncio.sleep(0)
    assert [entry.time for entry in kept.stored["web"].ledger.values()] == ["two"]


@pytest.mark.parametrize("reservation", ["", "long ago"], ids=["somebody", "the leader, of what it may give up soon"])
async def test_a_reservation_that_somebody_else_relies_on_is_theirs(reservation: str) -> None:
    """The leader gives back what it reserved when its own eviction is refused; not so what another was promised."""
    kept, world = store()
    kept.stored["web"] = status.charged(WEB, kept.stored["web"], [RESERVED])
    asked = request(world, "a0", time="drain", reservation=reservation)
    assert outcomes(await ask(kept, asked)) == [ChargeResult.ALLOWED]
    (now,) = kept.stored["web"].ledger.values()
    assert (now.source, now.time) == (ChargeSource.EVICTION, "drain")


@given(st.lists(st.sampled_from(["a0", "a1", "a2", "b0", "b1", "c0"]), max_size=12), st.data())
def test_never_more_than_the_budget_allows(names: list[str], data: st.DataObject) -> None:
    """Whatever was heard late, whoever comes together: one per zone is charged, and who is told yes is charged."""
    kept, world = store()
    seen = data.draw(st.sampled_from([(), ("a0",), ("b1",)]))
    kept.seen["web"] = fresh(world.charged(*seen))
    kept.before = [Conflict("lost") for _ in range(data.draw(st.integers(0, 3)))]
    split = data.draw(st.integers(0, len(names)))

    async def run() -> list[list[ChargeAnswer]]:
        stamped = [request(world, name, time=f"{name}-{turn}") for turn, name in enumerate(names)]
        return [*await ask(kept, *stamped[:split]), *await ask(kept, *stamped[split:])]

    answers = asyncio.run(run())
    passed = {
        name
        for name, each in zip(names, answers, strict=True)
        if each[-1].outcome in {ChargeResult.ALLOWED, ChargeResult.CHARGED}
    }
    ledger = kept.stored["web"].ledger
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
    kept, world = store()
    kept.seen["web"], kept.stored["web"] = fresh(world), fresh(world.charged(*taken))
    kept.before = [Conflict("lost") for _ in range(conflicts)]

    async def run() -> list[list[ChargeAnswer]]:
        stamped = [request(world, name, WEB, OTHER, time=f"{name}-{turn}") for turn, name in enumerate(names)]
        return await ask(kept, *stamped, budgets=(WEB, OTHER))

    told = zip(names, outcomes(asyncio.run(run())), strict=True)
    passed = {f"uid-{name}" for name, outcome in told if outcome not in {ChargeResult.DENIED, ChargeResult.BUSY}}
    for ledger in (kept.stored["web"].ledger, kept.stored["other"].ledger):
        assert passed <= set(ledger)
        assert max(Counter(entry.domain for entry in ledger.values()).values(), default=0) <= 1
    left_over = kept.stored["other"].ledger.keys() - passed
    assert all(names.count(uid.removeprefix("uid-")) > 1 for uid in left_over)
