"""Order of leaving pods: the fullest domains first; choices are taken back when not needed."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.disruption.decide.pod_order import Domain, OrderedPod, PodOrder, PodQueue, shrinking

A, B, C = "a", "b", "c"


@dataclass(frozen=True)
class Pod:
    uid: str
    domain: Domain
    ready: bool = True
    rank: tuple[int | str, ...] = ()
    refusal_rank: int = 0


def spread(*counts: int) -> list[Pod]:
    return [Pod(f"{zone}{index}", zone) for zone, count in zip("abc", counts, strict=False) for index in range(count)]


def leave(pods: list[Pod], count: int, order: PodOrder = PodOrder.FULLEST_FIRST) -> list[Pod]:
    queue = PodQueue(pods, order, Counter(pod.domain for pod in pods))
    gone = []
    for _ in range(count):
        pod = queue.next()
        assert pod is not None
        queue.went(pod)
        gone.append(pod)
    return gone


@pytest.mark.parametrize(
    ("before", "replicas", "after"),
    [
        pytest.param((3, 3, 3), 6, (2, 2, 2), id="an even spread stays even"),
        pytest.param((5, 3, 1), 6, (2, 3, 1), id="big zones give first"),
        pytest.param((2, 3, 3), 6, (2, 2, 2), id="a zone that gave its share gives no more"),
        pytest.param((5, 3, 1), 2, (0, 1, 1), id="down to fewer than domains"),
        pytest.param((4, 3, 3), 9, (3, 3, 3), id="a surge pod leaves from where it is too many"),
        pytest.param((3, 3, 3), 0, (0, 0, 0), id="to nothing"),
    ],
)
def test_scale_down_levels_the_domains(before: tuple[int, ...], replicas: int, after: tuple[int, ...]) -> None:
    pods = spread(*before)
    gone = leave(pods, sum(before) - replicas)
    left = Counter(pod.domain for pod in pods if pod not in gone)
    assert tuple(left[domain] for domain in (A, B, C)) == after


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.data())
def test_fullest_domain_gives_first(counts: list[int], data: st.DataObject) -> None:
    pods = [Pod(f"{zone}-{index}", f"zone-{zone}") for zone, count in enumerate(counts) for index in range(count)]
    keep = data.draw(st.integers(0, len(pods)))
    left = Counter(pod.domain for pod in pods)
    for pod in leave(pods, len(pods) - keep):
        assert left[pod.domain] == max(left.values())
        left[pod.domain] -= 1


def test_pods_that_stay_count_too() -> None:
    old = [Pod("a-old", A), Pod("b-old", B)]
    queue = PodQueue(old, PodOrder.FULLEST_FIRST, {A: 1, B: 3})
    assert [queue.next(), queue.next()] == [old[1], old[0]]


def test_unready_pods_go_first_and_then_one_domain_after_the_other() -> None:
    pods = [Pod("b1", B), Pod("a2", A, rank=(-2,)), Pod("c1", C, ready=False), Pod("a7", A, rank=(-7,))]
    assert [pod.uid for pod in leave(pods, 4, PodOrder.BY_DOMAIN)] == ["c1", "a7", "a2", "b1"]


def test_refused_pod_comes_last_in_its_domain() -> None:
    pods = [
        Pod("a1", A, ready=False, refusal_rank=1),
        Pod("a2", A),
        Pod("b1", B, refusal_rank=3),
        Pod("b2", B, refusal_rank=2),
    ]
    assert [pod.uid for pod in leave(pods, 4, PodOrder.BY_DOMAIN)] == ["a2", "a1", "b2", "b1"]


def test_refusing_domains_come_last_with_their_unready_pods() -> None:
    pods = [Pod("a1", A), Pod("a2", A, ready=False), Pod("b1", B), Pod("c1", C), Pod("c2", C, ready=False)]
    queue = PodQueue(pods, PodOrder.BY_DOMAIN, refusal_rank=lambda domain: {A: 2, B: 1}.get(domain, 0))
    assert [pod.uid for pod in iter(queue.next, None)] == ["c2", "c1", "b1", "a2", "a1"]


def test_a_fixed_order_is_followed() -> None:
    pods = [Pod("web-5", B), Pod("web-4", A, ready=False), Pod("web-3", A)]
    assert leave(pods, 3, PodOrder.AS_GIVEN) == pods


def members(ready: str, chosen: str = "", unready: str = "") -> list[OrderedPod]:
    return [
        *(OrderedPod(f"r{index}", zone, ready=True, chosen=False) for index, zone in enumerate(ready)),
        *(OrderedPod(f"x{index}", zone, ready=True, chosen=True) for index, zone in enumerate(chosen)),
        *(OrderedPod(f"u{index}", zone, ready=False, chosen=False) for index, zone in enumerate(unready)),
    ]


@pytest.mark.parametrize(
    ("pods", "replicas", "missing", "surplus"),
    [
        pytest.param(members("aaabbbccc"), 9, 0, (), id="no pod has to go"),
        pytest.param(members("aaabbbccc"), 6, 3, (), id="three have to"),
        pytest.param(members("aabbcc", "abc"), 6, 0, (), id="three are chosen already"),
        pytest.param(members("aabbccc", "ab"), 6, 1, (), id="one is still missing"),
        pytest.param(
            members("aaabbb", unready="ccc"), 6, 0, (), id="the stock controller takes unready ones by itself"
        ),
        pytest.param(members("aaabbb", unready="cc"), 4, 2, (), id="unready ones are not enough"),
        pytest.param(members("aabbcc", "abc"), 9, 0, ("x0", "x1", "x2"), id="scaled up again"),
        pytest.param(members("aab", "bcc"), 5, 0, ("x1", "x0"), id="the emptiest domains keep theirs"),
        pytest.param([], 3, 0, (), id="no pods"),
    ],
)
def test_number_of_pods_to_choose(
    pods: list[OrderedPod], replicas: int, missing: int, surplus: tuple[str, ...]
) -> None:
    result = shrinking(pods, replicas)
    assert (result.missing, result.surplus) == (missing, surplus)
