"""Selector indexes agree with a scan over everything, after any history."""

from hypothesis import given
from hypothesis import strategies as st

from zonewise.objects import Key
from zonewise.slices.decide.selectors import PodsByLabel, ServicesBySelector

History = list[tuple[Key, dict[str, str] | None]]

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)
KEYS = st.builds(Key, st.sampled_from(["one", "two"]), st.sampled_from("pqr"))


@given(st.lists(st.tuples(KEYS, st.none() | LABELS)), st.sampled_from(["one", "two"]), LABELS)
def test_pods_of_a_service(history: History, namespace: str, selector: dict[str, str]) -> None:
    index, pods = PodsByLabel(), {}
    for key, labels in history:
        if key in pods:
            index.remove(key, pods.pop(key))
        if labels is not None:
            index.put(key, labels)
            pods[key] = labels
    scanned = {key for key, labels in pods.items() if key.namespace == namespace and selector.items() <= labels.items()}
    assert set(index.matching(namespace, selector)) == scanned


@given(st.lists(st.tuples(KEYS, st.none() | LABELS)), st.sampled_from(["one", "two"]), LABELS)
def test_services_of_a_pod(history: History, namespace: str, labels: dict[str, str]) -> None:
    index, services = ServicesBySelector(), {}
    for key, selector in history:
        index.put(key, selector)
        services.pop(key, None)
        if selector is not None:
            services[key] = selector
    scanned = [
        key for key, selector in services.items() if key.namespace == namespace and selector.items() <= labels.items()
    ]
    assert sorted(index.matching(namespace, labels)) == sorted(scanned)


def test_services_are_indexed_by_their_rarest_pair() -> None:
    index = ServicesBySelector()
    for number in range(100):
        index.put(Key("one", f"s{number}"), {"tier": "prod", "app": f"a{number}"})
    pairs = {index._pairs_by_service[Key("one", f"s{number}")] for number in range(100)}
    assert len(pairs) > 90
