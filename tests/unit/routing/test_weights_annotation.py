"""The weights annotation: written weights are read back, and an invalid one counts as empty."""

import pytest

from zonewise.routing.load import LoadShare
from zonewise.routing.weights_annotation import read_weights, write_weights

LENT = (LoadShare("a", 0.5), LoadShare("c", 0.5))
THIRDS = (LoadShare("a", 1 / 3), LoadShare("b", 1 / 3), LoadShare("c", 1 / 3))


def test_written_weights_are_read_back() -> None:
    weighted = {"10.0.0.2": LENT, "10.0.0.1": LENT, "10.0.0.3": THIRDS, "10.9.9.9": THIRDS}
    annotation = write_weights(weighted, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
    assert read_weights(annotation) == {
        "10.0.0.1": {"a": 0.5, "c": 0.5},
        "10.0.0.2": {"a": 0.5, "c": 0.5},
        "10.0.0.3": dict(THIRDS),
    }
    assert annotation == write_weights(weighted, ["10.0.0.3", "10.0.0.2", "10.0.0.1"]), "whatever the order"
    assert write_weights(weighted, ["10.0.0.4"]) == ""


@pytest.mark.parametrize(
    "annotation",
    ["", "{", "[1]", '[{"zones": {"a": -1}, "addresses": ["10.0.0.1"]}]', '[{"zones": {"a": "1"}, "addresses": []}]'],
)
def test_invalid_annotation_counts_as_empty(annotation: str) -> None:
    assert read_weights(annotation) == {}
