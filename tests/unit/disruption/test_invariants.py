"""Invariants of counts and charges in random clusters."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import Cluster
from unit.disruption.strategies import BUDGETS, clusters
from zonewise.disruption.decide.allowance import BudgetAllowance, level_down
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.ledger import LedgerEntry
from zonewise.disruption.decide.pods import PodFacts, owner_of
from zonewise.disruption.decide.status import charged
from zonewise.disruption.decide.verdict import BudgetCase, EvictionVerdict, judge_all

ANY_BUDGET = st.sampled_from(BUDGETS)


def entry(cluster: Cluster, limited: Budget, member: PodFacts) -> LedgerEntry:
    domain = cluster.node_domains.domain_key(limited, member).domain
    return LedgerEntry(uid=member.uid, name=member.name, domain=domain, owner=owner_of(member, cluster.workloads))


def allowed(numbers: BudgetAllowance) -> dict[str, int]:
    return {name: domain.allowed for name, domain in numbers.domains.items()}


@given(cluster=clusters(), limited=ANY_BUDGET, pick=st.randoms(use_true_random=False))
def test_charge_never_raises_numbers_and_equals_a_new_count(
    cluster: Cluster, limited: Budget, pick: random.Random
) -> None:
    """Pod after pod, as a planner works on its copy and webhooks on the status."""
    status = cluster.status(limited)
    names = sorted(cluster.pods)
    pick.shuffle(names)
    for name in names:
        member = cluster.pods[name]
        verdict = judge_all([BudgetCase(limited, status)], member, cluster.node_domains, cluster.pods.values()).verdict
        if verdict is not EvictionVerdict.CHARGE or not member.ready or member.leaving:
            continue
        before = allowed(status.numbers)
        status = charged(limited, status, [entry(cluster, limited, member)])
        cluster = cluster.charged(name)
        after = allowed(status.numbers)
        assert all(after[domain] <= before[domain] for domain in before)
        assert status.numbers == cluster.pod_count(limited).numbers


@given(cluster=clusters(), limited=ANY_BUDGET, seed=st.integers(0, 1000))
def test_count_does_not_depend_on_pod_order(cluster: Cluster, limited: Budget, seed: int) -> None:
    shuffled = list(cluster.pods.items())
    random.Random(seed).shuffle(shuffled)
    other = replace(cluster, pods=dict(shuffled))
    pod_count, again = cluster.pod_count(limited), other.pod_count(limited)
    assert (pod_count.numbers, pod_count.departures, pod_count.owner_slots) == (
        again.numbers,
        again.departures,
        again.owner_slots,
    )


@given(cluster=clusters(healthy=True), limited=ANY_BUDGET, order=st.randoms(use_true_random=False))
def test_no_domain_loses_more_than_its_limit(cluster: Cluster, limited: Budget, order: random.Random) -> None:
    """Whatever leaves by way of charges, each domain keeps what it must have of its share at the end."""
    names = sorted(cluster.pods)
    order.shuffle(names)
    for name in names:
        if cluster.judge(name, limited).verdict is EvictionVerdict.CHARGE:
            cluster = cluster.charged(name)
            numbers = cluster.pod_count(limited).numbers.domains
            domain = numbers[cluster.node_domains.domain_key(limited, cluster.pods[name]).domain]
            assert domain.healthy >= domain.desired


@given(cluster=clusters(), first=ANY_BUDGET, second=ANY_BUDGET, data=st.data())
def test_pod_is_charged_to_all_budgets_or_none(
    cluster: Cluster, first: Budget, second: Budget, data: st.DataObject
) -> None:
    second = replace(second, key=second.key._replace(name="zz-second"))
    name = data.draw(st.sampled_from(sorted(cluster.pods)))
    both = cluster.judge(name, first, second)
    # Alone, a budget may wait for a peer that the other one freezes.
    alone = [cluster.judge(name, limited) for limited in (first, second)]
    if not (first.frozen or second.frozen):
        assert both.verdict is max((judged.verdict for judged in alone), key=list(EvictionVerdict).index)
    assert (both.verdict is EvictionVerdict.DENY) is bool(both.denials)


@given(cluster=clusters(), limited=ANY_BUDGET)
def test_sums_of_a_count_are_consistent(cluster: Cluster, limited: Budget) -> None:
    pod_count = cluster.pod_count(limited)
    for domain in pod_count.numbers.domains.values():
        assert 0 <= domain.healthy <= domain.slots
        assert 0 <= domain.allowed <= domain.healthy
        assert domain.target <= domain.slots or limited.whole
    again = replace(cluster, before=cluster).pod_count(limited)
    assert again.numbers.tally.domains == pod_count.numbers.tally.domains


@given(slots=st.lists(st.integers(0, 30), max_size=8), staying=st.integers(0, 120))
def test_levelling_down(slots: list[int], staying: int) -> None:
    level = level_down(slots, staying)
    if level is None:
        assert sum(slots) <= staying
    else:
        assert sum(min(count, level) for count in slots) <= staying < sum(min(count, level + 1) for count in slots)
