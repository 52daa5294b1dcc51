"""What must hold in every world: charging never frees anything, counts agree, order means nothing, all or none."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import World
from unit.disruption.strategies import BUDGETS, worlds
from zonewise.disruption.decide.allowance import BudgetAllowance, level_down
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.ledger import LedgerEntry
from zonewise.disruption.decide.pods import PodFacts, owner_of
from zonewise.disruption.decide.status import charged
from zonewise.disruption.decide.verdict import BudgetCase, EvictionVerdict, judge_all

ANY_BUDGET = st.sampled_from(BUDGETS)


def entry(world: World, limited: Budget, known: PodFacts) -> LedgerEntry:
    domain = world.atlas.place(limited, known).domain
    return LedgerEntry(uid=known.uid, name=known.name, domain=domain, owner=owner_of(known, world.workloads))


def allowed(numbers: BudgetAllowance) -> dict[str, int]:
    return {name: domain.allowed for name, domain in numbers.domains.items()}


@given(world=worlds(), limited=ANY_BUDGET, pick=st.randoms(use_true_random=False))
def test_charging_frees_nothing_and_agrees_with_a_new_count(world: World, limited: Budget, pick: random.Random) -> None:
    """Pod after pod, as a planner works on its copy and webhooks on the status."""
    status = world.status(limited)
    names = sorted(world.pods)
    pick.shuffle(names)
    for name in names:
        known = world.pods[name]
        verdict = judge_all([BudgetCase(limited, status)], known, world.atlas, world.pods.values()).verdict
        if verdict is not EvictionVerdict.CHARGE or not known.ready or known.leaving:
            continue
        before = allowed(status.numbers)
        status = charged(limited, status, [entry(world, limited, known)])
        world = world.charged(name)
        after = allowed(status.numbers)
        assert all(after[domain] <= before[domain] for domain in before)
        assert status.numbers == world.census(limited).numbers


@given(world=worlds(), limited=ANY_BUDGET, seed=st.integers(0, 1000))
def test_the_order_of_pods_means_nothing(world: World, limited: Budget, seed: int) -> None:
    shuffled = list(world.pods.items())
    random.Random(seed).shuffle(shuffled)
    other = replace(world, pods=dict(shuffled))
    census, again = world.census(limited), other.census(limited)
    assert (census.numbers, census.departures, census.places) == (again.numbers, again.departures, again.places)


@given(world=worlds(healthy=True), limited=ANY_BUDGET, order=st.randoms(use_true_random=False))
def test_no_domain_loses_more_than_its_limit(world: World, limited: Budget, order: random.Random) -> None:
    """Whatever leaves by way of charges, each domain keeps what it must have of its share at the end."""
    names = sorted(world.pods)
    order.shuffle(names)
    for name in names:
        if world.judge(name, limited).verdict is EvictionVerdict.CHARGE:
            world = world.charged(name)
            numbers = world.census(limited).numbers.domains
            domain = numbers[world.atlas.place(limited, world.pods[name]).domain]
            assert domain.healthy >= domain.desired


@given(world=worlds(), first=ANY_BUDGET, second=ANY_BUDGET, data=st.data())
def test_all_budgets_or_none(world: World, first: Budget, second: Budget, data: st.DataObject) -> None:
    second = replace(second, key=second.key._replace(name="zz-second"))
    name = data.draw(st.sampled_from(sorted(world.pods)))
    both = world.judge(name, first, second)
    # Alone, a budget may wait for a peer that the other one freezes.
    alone = [world.judge(name, limited) for limited in (first, second)]
    if not (first.frozen or second.frozen):
        assert both.verdict is max((judged.verdict for judged in alone), key=list(EvictionVerdict).index)
    assert (both.verdict is EvictionVerdict.DENY) is bool(both.denials)


@given(world=worlds(), limited=ANY_BUDGET)
def test_a_whole_count_is_consistent(world: World, limited: Budget) -> None:
    census = world.census(limited)
    for domain in census.numbers.domains.values():
        assert 0 <= domain.healthy <= domain.slots
        assert 0 <= domain.allowed <= domain.healthy
        assert domain.target <= domain.slots or limited.whole
    again = replace(world, before=world).census(limited)
    assert again.numbers.tally.domains == census.numbers.tally.domains


@given(slots=st.lists(st.integers(0, 30), max_size=8), staying=st.integers(0, 120))
def test_levelling_down(slots: list[int], staying: int) -> None:
    level = level_down(slots, staying)
    if level is None:
        assert sum(slots) <= staying
    else:
        assert sum(min(count, level) for count in slots) <= staying < sum(min(count, level + 1) for count in slots)
