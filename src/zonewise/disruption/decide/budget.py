"""Parsed and checked spec of a TopologyDisruptionBudget, and the domain of each node under it. Pure.

Counts, verdicts and plans use a `Budget`, never the object. The CRD refuses at admission what this module refuses, with
the same advice. It is checked again here because an object may be older than its CRD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from zonewise.errors import ZonewiseError
from zonewise.objects import Key
from zonewise.objects.policy import TopologyDisruptionBudget, TopologyDisruptionBudgetSpec
from zonewise.topology import (
    LabelSelector,
    NodeSelectorTerm,
    Operator,
    Requirement,
    SelectorError,
    canonical_key,
    canonical_labels,
    domain_of,
    key_problem,
)

EVERYWHERE: Final = "all"
"""The one domain of a budget without a term."""

POOL: Final = "pool"
"""The one domain of a budget whose term selects nodes and does not split them."""

E = TypeVar("E", bound=StrEnum)


class BudgetError(ZonewiseError):
    """A budget's spec is invalid; `problems` has one line per wrong field, each with what to write."""

    def __init__(self, key: Key, problems: tuple[str, ...]) -> None:
        super().__init__(f"TopologyDisruptionBudget {key}: {'; '.join(problems)}")
        self.problems = problems


class Enforcement(StrEnum):
    ENFORCE = "Enforce"
    DRY_RUN = "DryRun"
    OFF = "Off"


class DisruptionKind(StrEnum):
    """The requests that a budget limits; all others are counted, never refused."""

    EVICTIONS = "Evictions"
    CONTROLLER_DELETES = "ControllerDeletes"
    DELETES = "Deletes"


class UnhealthyPolicy(StrEnum):
    IF_HEALTHY_BUDGET = "IfHealthyBudget"
    ALWAYS_ALLOW = "AlwaysAllow"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of pods, or a percentage that rounds up, as in both fields of a stock PDB."""

    number: int
    percent: bool = False

    @classmethod
    def parse(cls, value: int | str) -> Amount:
        """Raises ValueError with advice."""
        text = str(value)
        digits = text.removesuffix("%")
        percent = isinstance(value, str) and text.endswith("%")
        if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()) or (percent and int(digits) > 100):
            raise ValueError(f"{value!r} is not an amount; write a number such as 1 or a percentage such as '25%'")
        if isinstance(value, str) and not percent:
            raise ValueError(f"{value!r} is text; write the number {digits} without quotes, or '{digits}%'")
        return cls(int(digits), percent)

    def of(self, whole: int) -> int:
        return -(-self.number * whole // 100) if self.percent else self.number

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)


class BudgetDomainKey(NamedTuple):
    """The domain of a pod under a budget, and whether the budget covers it.

    The name joins the values of the split keys with slashes; it is empty if the node lacks one of them.
    """

    domain: str
    covered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Exactly one of `minimum` and `maximum` is set. The keys of `term` use the current zone and region labels."""

    key: Key
    uid: str = ""
    generation: int = 0
    selector: LabelSelector
    term: NodeSelectorTerm | None = None
    split_keys: tuple[str, ...] = ()
    minimum: Amount | None = None
    maximum: Amount | None = None
    max_disrupted_domains: int | None = None
    unhealthy: UnhealthyPolicy = UnhealthyPolicy.IF_HEALTHY_BUDGET
    enforcement: Enforcement = Enforcement.ENFORCE
    apply_to: frozenset[DisruptionKind] = frozenset({DisruptionKind.EVICTIONS, DisruptionKind.CONTROLLER_DELETES})

    @classmethod
    def parse(cls, value: TopologyDisruptionBudget) -> Budget:
        """Raises BudgetError with every problem found."""
        return _parse(value)

    @property
    def whole(self) -> bool:
        """Without term and keys it works like a stock PDB: one domain, measured against all wanted replicas."""
        return self.term is None and not self.split_keys

    @property
    def fixed_minimum(self) -> bool:
        """That many must be healthy, whatever the controllers want."""
        return self.minimum is not None and not self.minimum.percent

    @property
    def frozen(self) -> bool:
        """Nothing may leave, not even while a workload scales down."""
        if self.maximum is not None:
            return self.maximum.number == 0
        return self.minimum is not None and self.minimum.percent and self.minimum.number == 100

    @property
    def limit(self) -> str:
        return f"maxUnavailable {self.maximum}" if self.maximum is not None else f"minAvailable {self.minimum}"

    def selects(self, pod_labels: Mapping[str, str]) -> bool:
        return self.selector.matches(pod_labels)

    def desired(self, target: int) -> int:
        """How many of a domain's `target` pods must be healthy."""
        if self.maximum is not None:
            return max(0, target - self.maximum.of(target))
        assert self.minimum is not None
        return self.minimum.of(target)

    def domain_key(self, node_labels: Mapping[str, str], node_name: str = "") -> BudgetDomainKey:
        """The domain of a pod on this node. Old zone and region labels count as the current ones, in the term and on nodes."""
        labels = canonical_labels(node_labels)
        covered = self.term is None or self.term.matches(labels, node_name)
        if not self.split_keys:
            return BudgetDomainKey(EVERYWHERE if self.term is None else POOL, covered)
        values = [domain_of(labels, key) for key in self.split_keys]
        if None in values:
            return BudgetDomainKey("", covered=False)
        return BudgetDomainKey("/".join(value or "" for value in values), covered)


def _parse(value: TopologyDisruptionBudget) -> Budget:
    spec, problems = value.spec, list[str]()
    key = Key(value.metadata.namespace, value.metadata.name)
    minimum = _amount(spec.min_available, "spec.minAvailable", problems)
    maximum = _amount(spec.max_unavailable, "spec.maxUnavailable", problems)
    if (spec.min_available is None) == (spec.max_unavailable is None):
        problems.append("spec: write either minAvailable or maxUnavailable, exactly one of them")
    if spec.max_disrupted_domains is not None and spec.max_disrupted_domains < 1:
        problems.append("spec.maxDisruptedDomains: write 1 or more; to allow no disruption write maxUnavailable: 0")
    selector = _selector(spec, problems)
    term = _term(spec, problems)
    split_keys = _split_keys(spec, term, problems)
    if spec.max_disrupted_domains is not None and not split_keys:
        problems.append(
            "spec.maxDisruptedDomains: there are no domains to count; write a node label with operator Exists in "
            "nodeSelectorTerm.matchExpressions, or name it in domainKeys"
        )
    enforcement = _choice(Enforcement, spec.enforcement, "spec.enforcement", problems)
    unhealthy = _choice(
        UnhealthyPolicy, spec.unhealthy_pod_eviction_policy, "spec.unhealthyPodEvictionPolicy", problems
    )
    apply_to = frozenset(_choice(DisruptionKind, kind, "spec.applyTo", problems) for kind in spec.apply_to)
    if problems:
        raise BudgetError(key, tuple(problems))
    return Budget(
        key=key,
        uid=value.metadata.uid,
        generation=value.metadata.generation,
        selector=selector,
        term=term,
        split_keys=split_keys,
        minimum=minimum,
        maximum=maximum,
        max_disrupted_domains=spec.max_disrupted_domains,
        unhealthy=unhealthy,
        enforcement=enforcement,
        apply_to=apply_to,
    )


def _amount(value: int | str | None, path: str, problems: list[str]) -> Amount | None:
    if value is None:
        return None
    try:
        return Amount.parse(value)
    except ValueError as error:
        problems.append(f"{path}: {error}")
        return None


def _selector(spec: TopologyDisruptionBudgetSpec, problems: list[str]) -> LabelSelector:
    try:
        return LabelSelector.parse(spec.selector, "spec.selector")
    except SelectorError as error:
        problems += error.problems
        return LabelSelector(None)


def _term(spec: TopologyDisruptionBudgetSpec, problems: list[str]) -> NodeSelectorTerm | None:
    if spec.node_selector_term is None:
        return None
    try:
        term = NodeSelectorTerm.parse(spec.node_selector_term, "spec.nodeSelectorTerm")
    except SelectorError as error:
        problems += error.problems
        return None
    return replace(term, match_expressions=tuple(_canonical(requirement) for requirement in term.match_expressions))


def _canonical(requirement: Requirement) -> Requirement:
    return replace(requirement, key=canonical_key(requirement.key))


def _split_keys(
    spec: TopologyDisruptionBudgetSpec, term: NodeSelectorTerm | None, problems: list[str]
) -> tuple[str, ...]:
    """The keys whose values make domains: those with operator Exists, in their order, unless the spec names others."""
    problems += [f"spec.domainKeys: {problem}" for key in spec.domain_keys if (problem := key_problem(key))]
    required = (
        [requirement.key for requirement in term.match_expressions if requirement.operator is Operator.EXISTS]
        if term
        else []
    )
    return tuple(dict.fromkeys(canonical_key(key) for key in spec.domain_keys or required))


def _choice(kind: type[E], value: str, path: str, problems: list[str]) -> E:
    for choice in kind:
        if choice == value:
            return choice
    problems.append(f"{path}: {value!r} is unknown; write one of {', '.join(kind)}")
    return next(iter(kind))
