"""The index of selectors equals a fresh selection after any change."""

from hypothesis import given
from hypothesis import strategies as st

from zonewise.disruption.decide.selectors import BudgetSelectors
from zonewise.objects import Key
from zonewise.topology import LabelSelector

SELECTORS = {
    "all": {},
    "web": {"matchLabels": {"app": "web"}},
    "new": {"matchExpressions": [{"key": "track", "operator": "NotIn", "values": ["old"]}]},
}
LABELS = ({}, {"app": "web"}, {"app": "web", "track": "old"}, {"track": "new"}, None)

budgets = st.builds(Key, st.sampled_from("xy"), st.sampled_from("123"))
pods = st.builds(Key, st.sampled_from("xy"), st.sampled_from("abc"))
changes = st.one_of(
    st.tuples(budgets, st.sampled_from([*SELECTORS.values(), None])), st.tuples(pods, st.sampled_from(LABELS))
)


@given(st.lists(changes, max_size=30))
def test_index_equals_a_fresh_selection(happened: list[tuple[Key, dict[str, object] | None]]) -> None:
    store = BudgetSelectors()
    selectors: dict[Key, LabelSelector] = {}
    labels: dict[Key, dict[str, str]] = {}
    for key, value in happened:
        if key.name.isdigit():
            selector = LabelSelector.parse(value) if value is not None else None
            store.put_selector(key, selector)
            selectors = {**selectors, key: selector} if selector else {k: v for k, v in selectors.items() if k != key}
        else:
            store.put_pod(key, value)
            labels = {**labels, key: value} if value is not None else {k: v for k, v in labels.items() if k != key}
    for budget, selector in selectors.items():
        expected = {
            pod for pod, found in labels.items() if pod.namespace == budget.namespace and selector.matches(found)
        }
        assert set(store.members(budget)) == expected
    for pod, found in labels.items():
        expected = sorted(b for b, s in selectors.items() if b.namespace == pod.namespace and s.matches(found))
        assert list(store.selecting(pod)) == expected == list(store.matching(pod.namespace, found))
