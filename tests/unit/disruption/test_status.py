"""The status as a document and back, charges on it, and that it stays small."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import ACROSS, BY_ZONE, EXISTS, NOW, OVERALL, Cluster, budget, pod, spread, workloads
from unit.disruption.strategies import BUDGETS, clusters
from zonewise.disruption.decide.allowance import BudgetAllowance, DomainCount, DomainFill, compute_allowance
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry
from zonewise.disruption.decide.pods import ControllerRef
from zonewise.disruption.decide.status import (
    DISRUPTION_ALLOWED,
    SYNC_FAILED,
    PublishedStatus,
    Recollection,
    allowed_by_domain,
    charged,
    document,
    published,
    read,
    recollect,
    refunded,
    restated,
)
from zonewise.objects.policy import (
    BudgetCharge,
    StatusCondition,
    TopologyDisruptionBudget,
    TopologyDisruptionBudgetStatus,
)

LATER = "2026-11-16T07:00:00Z"


def again(limited: Budget, status: PublishedStatus) -> PublishedStatus:
    """Through JSON, as the API keeps it."""
    text = {"status": json.loads(json.dumps(document(status)))}
    return read(limited, msgspec.convert(text, TopologyDisruptionBudget))


@given(cluster=clusters(), limited=st.sampled_from(BUDGETS))
def test_status_survives_the_round_trip_to_the_api(cluster: Cluster, limited: Budget) -> None:
    status = cluster.status(limited)
    assert again(limited, status) == status


def test_object_without_status_is_not_observed() -> None:
    status = read(ACROSS, TopologyDisruptionBudget())
    assert (status.observed_generation, dict(status.ledger), status.numbers.tally.failure) == (0, {}, "")


def test_unknown_scale_fails_the_sync_and_stays_failed_after_a_charge() -> None:
    """A person's delete is charged whatever the budget allows; the numbers that follow must not allow more."""
    strange = pod("a9", controller=ControllerRef("Custom", "thing", "custom"))
    status = spread("3/3/3").with_pods(strange).status(ACROSS)
    entry = LedgerEntry(uid="uid-b0", name="b0", domain="b", owner="deployment")
    for version in (status, again(ACROSS, charged(ACROSS, status, [entry]))):
        stated = restated(ACROSS, version, NOW)
        condition = stated.condition(DISRUPTION_ALLOWED)
        assert condition is not None
        assert condition.reason == SYNC_FAILED
        assert "Custom thing" in condition.message
        assert stated.numbers.allowed == 0


def test_every_field_is_always_sent() -> None:
    """So that a merge patch leaves nothing behind."""
    full = spread("3/3/3").scaled(6).charged("a0").gone("b0").status(BY_ZONE)
    assert document(full).keys() == document(PublishedStatus()).keys()


def test_charge_changes_all_derived_numbers() -> None:
    one_domain = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)
    status = spread("3/3/3").status(one_domain)
    after = charged(one_domain, status, [LedgerEntry(uid="uid-a0", name="a0", domain="a", owner="deployment")])
    assert {name: domain.allowed for name, domain in after.numbers.domains.items()} == {"a": 2, "b": 0, "c": 0}
    assert list(after.ledger) == ["uid-a0"]


def test_charged_pod_is_not_charged_again() -> None:
    status = spread("3/3/3").charged("a0").status(ACROSS)
    assert charged(ACROSS, status, [LedgerEntry(uid="uid-a0", domain="a")]) is status
    twice = charged(ACROSS, status, [LedgerEntry(uid="uid-b0", domain="b")] * 2)
    assert (list(twice.ledger), twice.numbers.domains["b"].healthy) == (["uid-a0", "uid-b0"], 2)


def test_refund_removes_the_entry_and_keeps_the_numbers() -> None:
    status = spread("3/3/3").status(ACROSS)
    after = charged(ACROSS, status, [LedgerEntry(uid="uid-a0", domain="a", owner="deployment")])
    back = refunded(after, {"uid-a0"})
    assert (dict(back.ledger), back.numbers) == ({}, after.numbers)


def test_conditions_keep_their_time_until_their_status_changes() -> None:
    full = spread("3/3/3")
    first = full.status(ACROSS)
    others = [StatusCondition(type="ScaleDownOrderFixed", status="True", reason="StatefulSet", message="db")]
    same = published(ACROSS, full.pod_count(ACROSS), {}, first.conditions, LATER, others)
    allowed, fixed = same.conditions
    assert (allowed.status, allowed.reason, allowed.last_transition_time) == ("True", "SufficientPods", NOW)
    assert (fixed.type, fixed.last_transition_time, fixed.observed_generation) == ("ScaleDownOrderFixed", LATER, 1)
    frozen = published(BY_ZONE, full.pod_count(BY_ZONE), {}, first.conditions, LATER)
    (denied,) = frozen.conditions
    assert (denied.status, denied.reason, denied.last_transition_time) == ("False", "InsufficientPods", LATER)


LEFT = spread("3/3/3").charged("b0").gone("b0")
BY_LIMIT = budget(EXISTS, name="across", maxUnavailable=2)
RECOLLECTIONS: dict[str, tuple[Budget, Budget | None, int, str]] = {
    "the next count": (ACROSS, ACROSS, 1, "a:3/3 b:3/2 c:3/3"),
    "another limit": (ACROSS, BY_LIMIT, 2, "a:3/3 b:3/2 c:3/3"),
    "other domains": (OVERALL, ACROSS, 2, "a:3/3 b:2/2 c:3/3 +1"),
    "a new leader": (ACROSS, None, 1, "a:3/3 b:3/2 c:3/3"),
    "a new leader and another limit": (ACROSS, None, 2, "a:3/3 b:2/2 c:3/3 +1"),
    "a new leader and other domains": (OVERALL, None, 2, "a:3/3 b:2/2 c:3/3 +1"),
}


@pytest.mark.parametrize(("counted", "memory", "generation", "expected"), RECOLLECTIONS.values(), ids=RECOLLECTIONS)
def test_memory_of_earlier_counts(counted: Budget, memory: Budget | None, generation: int, expected: str) -> None:
    """A pod of b has left, and the budget may have been edited since; domains of another spec are no domains of this one.

    It holds for the count after that, too.
    """
    status = LEFT.status(counted)
    before = Recollection()
    if memory is not None:
        rule = recollect(replace(counted, uid=ACROSS.uid), status, Recollection()).rule
        before = Recollection(rule, spread("3/3/3").pod_count(counted).owner_slots)
    edited = replace(memory or ACROSS, uid=ACROSS.uid, generation=generation)
    for _ in range(2):
        before = recollect(edited, status, before)
        pod_count = before.count(edited, LEFT.pods.values(), LEFT.node_domains, LEFT.workloads, status.ledger)
        before = replace(before, owner_slots=pod_count.owner_slots)
        tally = pod_count.numbers.tally
        domains = " ".join(f"{name}:{slots}/{healthy}" for name, (slots, healthy) in sorted(tally.domains.items()))
        assert (f"{domains} +{tally.unplaced}" if tally.unplaced else domains) == expected


PROMISED = spread("3/3/3").charged("b0")
SINCE: dict[str, tuple[Cluster, str]] = {
    "gone": (PROMISED.lost("b0"), "a=1 b=0 c=1"),
    "terminating": (PROMISED.terminating("b0"), "a=1 b=0 c=1"),
    "replaced, and another zone lost one": (PROMISED.lost("b0", "a0").with_pods(pod("b9")), "a=0 b=0 c=0"),
    "terminating, replaced, and another zone lost one": (
        PROMISED.terminating("b0").lost("a0").with_pods(pod("b9")),
        "a=0 b=0 c=0",
    ),
}


@pytest.mark.parametrize(("cluster", "expected"), SINCE.values(), ids=SINCE)
def test_changes_without_a_leader(cluster: Cluster, expected: str) -> None:
    """The entry of a charged pod in b lasts a while after it is replaced: it must not hide another missing pod."""
    status = PROMISED.status(ACROSS)
    before = recollect(ACROSS, status, Recollection())
    for _ in range(2):
        pod_count = before.count(ACROSS, cluster.pods.values(), cluster.node_domains, cluster.workloads, status.ledger)
        assert allowed_by_domain(pod_count.numbers) == expected
        before = recollect(ACROSS, status, replace(before, owner_slots=pod_count.owner_slots))


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        ({}, ""),
        ({"a": 3, "b": 2}, "a=1 b=0"),
        ({f"rack-{number}": 3 if number < 4 else 2 for number in range(9)}, "4 in 4 of 9 domains"),
    ],
)
def test_allowed_by_domain_column(domains: dict[str, int], expected: str) -> None:
    tally = DomainCount(expected=9, domains={name: DomainFill(3, healthy) for name, healthy in domains.items()})
    assert allowed_by_domain(compute_allowance(ACROSS, tally)) == expected


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def test_document_stays_small() -> None:
    """Ten thousand pods in three zones are no more to write than nine; only charges under way take room."""
    small = spread("3/3/3").status(ACROSS)
    pods = {f"p{number}": pod(f"p{number}", f"node-{'abc'[number % 3]}") for number in range(10_000)}
    large = Cluster(pods, workloads(10_000)).status(ACROSS)
    assert size(document(large)) < size(document(small)) + 100 < 1200
    charge = BudgetCharge("u" * 36, "n" * 40, "d" * 20, "o" * 36, "2026-11-16T06:00:00.000000Z", "Eviction", True)
    assert len(str(charge)) < 200
    assert document(spread("3/3/3").charged("a0").status(OVERALL))["charges"].count("\n") == 1


WORD = st.text("abcXYZ019-_./", max_size=12).filter(lambda word: word != "-")


@given(st.lists(st.builds(BudgetCharge, WORD, WORD, WORD, WORD, WORD, st.sampled_from(ChargeSource), st.booleans())))
def test_charges_survive_the_round_trip(charges: list[BudgetCharge]) -> None:
    """A word may be missing: a domain has no name where its label has no value."""
    text = "".join(f"{charge}\n" for charge in charges)
    assert list(TopologyDisruptionBudgetStatus(charges=text).ledger) == charges


CHARGES = st.builds(BudgetCharge, *[st.text(max_size=9)] * 6, st.booleans(), st.booleans())


@given(st.lists(CHARGES))
def test_no_word_of_a_charge_makes_another_charge(charges: list[BudgetCharge]) -> None:
    """Any text is read back as it was, or refused."""
    written, lines = list[BudgetCharge](), ""
    for charge in charges:
        try:
            lines += f"{charge}\n"
        except ValueError:
            continue
        written.append(msgspec.structs.replace(charge, source=charge.source or "Eviction"))
    assert list(TopologyDisruptionBudgetStatus(charges=lines).ledger) == written


@given(st.text())
def test_whatever_is_read_can_be_written(charges: str) -> None:
    ledger = TopologyDisruptionBudgetStatus(charges=charges).ledger
    assert len(ledger) <= charges.count("\n") + 1
    again = TopologyDisruptionBudgetStatus(charges="".join(f"{charge}\n" for charge in ledger)).ledger
    assert again == ledger


FORGED = "x\nuid-b0 b0 all - t Eviction\nuid-c0 c0 all - t Eviction"


@pytest.mark.parametrize("word", [FORGED, FORGED.replace("\n", "\r"), FORGED.replace("\n", "\u2028"), "a b", "-"])
def test_name_with_lines_of_other_pods_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="no word for a ledger"):
        str(BudgetCharge("uid-a0", word))


def test_truncated_line_is_still_a_charge() -> None:
    assert BudgetCharge.parse("uid-a0 a0") == BudgetCharge("uid-a0", "a0")


def test_numbers_are_read_as_published() -> None:
    """A webhook of another version does not second-guess the leader."""
    status = spread("3/3/3").status(ACROSS)
    text: dict[str, Any] = {"status": document(status)}
    text["status"]["domains"][0]["allowed"] = 0
    numbers: BudgetAllowance = read(ACROSS, msgspec.convert(text, TopologyDisruptionBudget)).numbers
    assert [domain.allowed for domain in numbers.domains.values()] == [0, 1, 1]
