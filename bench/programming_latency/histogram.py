"""A Prometheus histogram as a metrics page shows it, and its quantiles as `histogram_quantile` computes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Histogram:
    """`buckets`: how many observations are at most the bound, by bound."""

    buckets: Mapping[float, float]
    sum: float

    @property
    def count(self) -> float:
        return max(self.buckets.values(), default=0.0)

    @property
    def mean(self) -> float:
        return self.sum / self.count

    def since(self, before: Histogram) -> Histogram:
        buckets = {bound: number - before.buckets.get(bound, 0.0) for bound, number in self.buckets.items()}
        return Histogram(buckets, self.sum - before.sum)

    def quantile(self, share: float) -> float:
        """Linear within a bucket; above the last finite bound, that bound."""
        rank = share * self.count
        for (low, before), (bound, number) in pairwise([(0.0, 0.0), *sorted(self.buckets.items())]):
            if number >= rank and number > before:
                return low if bound == float("inf") else low + (bound - low) * (rank - before) / (number - before)
        raise ValueError("no observation")


def read(page: str, name: str) -> Histogram:
    """All of the histogram's series together; empty if nothing was observed yet."""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    buckets: dict[float, float] = {}
    for sample in samples:
        if sample.name == f"{name}_bucket":
            bound = float(sample.labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return Histogram(buckets, sum(sample.value for sample in samples if sample.name == f"{name}_sum"))
