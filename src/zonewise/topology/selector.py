"""Node selectors and label selectors, evaluated exactly as the scheduler and the API server do.

A node selector is a list of terms, any of which may match; within a term all requirements must hold; a term without
requirements matches no node. A label selector is one such conjunction, but the empty one matches everything and the
absent one nothing. Labels are compared literally: the scheduler has no aliases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from zonewise.objects import View
from zonewise.topology.reason import Reason
from zonewise.topology.requirement import (
    LABEL_SELECTOR_OPERATORS,
    NODE_NAME_FIELD,
    Operator,
    Requirement,
    RequirementSpec,
    SelectorError,
    read_field_requirement,
    read_label_requirement,
)


class NodeSelectorTermSpec(View, frozen=True):
    """A term as written in an object, not yet checked."""

    match_expressions: tuple[RequirementSpec, ...] | None = None
    match_fields: tuple[RequirementSpec, ...] | None = None


class NodeSelectorSpec(View, frozen=True):
    node_selector_terms: tuple[NodeSelectorTermSpec | None, ...] | None = None


class LabelSelectorSpec(View, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[RequirementSpec, ...] | None = None


S = TypeVar("S", bound=View)


@dataclass(frozen=True, slots=True)
class Match:
    """Whether something matches, and the requirement that decided it."""

    matched: bool
    reason: Reason

    def __bool__(self) -> bool:
        return self.matched


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    @classmethod
    def parse(
        cls, source: NodeSelectorTermSpec | Mapping[str, Any] | None, path: str = "nodeSelectorTerm"
    ) -> NodeSelectorTerm:
        """Raises SelectorError with every problem found."""
        spec = _spec(source, NodeSelectorTermSpec, path)
        problems: list[str] = []
        expressions = _read_all(read_label_requirement, spec.match_expressions, f"{path}.matchExpressions", problems)
        fields = _read_all(read_field_requirement, spec.match_fields, f"{path}.matchFields", problems)
        if problems:
            raise SelectorError(problems)
        return cls(expressions, fields)

    @property
    def empty(self) -> bool:
        return not (self.match_expressions or self.match_fields)

    def matches(self, labels: Mapping[str, str], name: str = "") -> bool:
        return not self.empty and self._failing(labels, name) is None

    def explain(self, labels: Mapping[str, str], name: str = "") -> Match:
        if self.empty:
            return Match(False, Reason("EmptyTerm", "a term without requirements matches no node"))
        failing = self._failing(labels, name)
        if failing is None:
            return Match(True, Reason("TermMatches", f"all requirements hold: {self}"))
        return Match(
            False, _does_not_hold(failing, {NODE_NAME_FIELD: name} if failing in self.match_fields else labels)
        )

    def _failing(self, labels: Mapping[str, str], name: str) -> Requirement | None:
        """The first requirement that does not hold. A node without a name is not asked for it, as upstream."""
        failing = _first_failing(self.match_expressions, labels)
        if failing is None and name:
            failing = _first_failing(self.match_fields, {NODE_NAME_FIELD: name})
        return failing

    def __str__(self) -> str:
        return " and ".join(str(requirement) for requirement in (*self.match_expressions, *self.match_fields))


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """`problems` are those of terms that can't be read and so match nothing; only `parse_as_scheduler` leaves any."""

    terms: tuple[NodeSelectorTerm, ...]
    problems: tuple[str, ...] = ()

    @classmethod
    def parse(cls, source: NodeSelectorSpec | Mapping[str, Any] | None, path: str = "nodeSelector") -> NodeSelector:
        """Raises SelectorError with every problem of every term."""
        selector = cls.parse_as_scheduler(source, path)
        if selector.problems:
            raise SelectorError(selector.problems)
        return selector

    @classmethod
    def parse_as_scheduler(
        cls, source: NodeSelectorSpec | Mapping[str, Any] | None, path: str = "nodeSelector"
    ) -> NodeSelector:
        """Skips terms that can't be read, as the scheduler does with what the API server let through."""
        spec = _spec(source, NodeSelectorSpec, path)
        terms: list[NodeSelectorTerm] = []
        problems: list[str] = []
        for index, term in enumerate(spec.node_selector_terms or ()):
            try:
                terms.append(NodeSelectorTerm.parse(term, f"{path}.nodeSelectorTerms[{index}]"))
            except SelectorError as error:
                problems += error.problems
        return cls(tuple(terms), tuple(problems))

    def matches(self, labels: Mapping[str, str], name: str = "") -> bool:
        return any(term.matches(labels, name) for term in self.terms)

    def explain(self, labels: Mapping[str, str], name: str = "") -> Match:
        refusals = list(self.problems)
        for index, term in enumerate(self.terms):
            match = term.explain(labels, name)
            if match:
                return match
            refusals.append(f"term {index}: {match.reason}")
        return Match(False, Reason("NoTermMatches", "; ".join(refusals) or "there is no term, so no node matches"))


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """`requirements` is None for the absent selector, which selects nothing; empty selects everything."""

    requirements: tuple[Requirement, ...] | None

    @classmethod
    def parse(cls, source: LabelSelectorSpec | Mapping[str, Any] | None, path: str = "selector") -> LabelSelector:
        """Raises SelectorError with every problem found."""
        if source is None:
            return cls(None)
        spec = _spec(source, LabelSelectorSpec, path)
        problems: list[str] = []
        requirements = _read_match_labels(spec.match_labels or {}, f"{path}.matchLabels", problems)
        requirements += _read_all(_read_set_requirement, spec.match_expressions, f"{path}.matchExpressions", problems)
        if problems:
            raise SelectorError(problems)
        return cls(requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.requirements is not None and _first_failing(self.requirements, labels) is None

    def explain(self, labels: Mapping[str, str]) -> Match:
        if self.requirements is None:
            return Match(False, Reason("NoSelector", "there is no selector, so nothing matches"))
        failing = _first_failing(self.requirements, labels)
        if failing is not None:
            return Match(False, _does_not_hold(failing, labels))
        held = " and ".join(str(requirement) for requirement in self.requirements)
        return Match(
            True, Reason("SelectorMatches", f"all requirements hold: {held}" if held else "selects everything")
        )


class _Reader(Protocol):
    def __call__(self, spec: RequirementSpec, path: str, problems: list[str]) -> Requirement | None: ...


def _read_all(
    read: _Reader, specs: Sequence[RequirementSpec] | None, path: str, problems: list[str]
) -> tuple[Requirement, ...]:
    read_ones = (read(spec, f"{path}[{index}]", problems) for index, spec in enumerate(specs or ()))
    return tuple(requirement for requirement in read_ones if requirement is not None)


def _read_set_requirement(spec: RequirementSpec, path: str, problems: list[str]) -> Requirement | None:
    return read_label_requirement(spec, path, problems, LABEL_SELECTOR_OPERATORS)


def _read_match_labels(labels: Mapping[str, str], path: str, problems: list[str]) -> tuple[Requirement, ...]:
    specs = (RequirementSpec(key=key, operator=Operator.IN, values=(label,)) for key, label in labels.items())
    read_ones = [read_label_requirement(spec, f"{path}[{spec.key}]", problems) for spec in specs]
    return tuple(requirement for requirement in read_ones if requirement is not None)


def _spec(source: S | Mapping[str, Any] | None, kind: type[S], path: str) -> S:
    if isinstance(source, kind):
        return source
    try:
        return msgspec.convert(source or {}, kind)
    except msgspec.ValidationError as error:
        raise SelectorError([f"{path}: {error}"]) from error


def _first_failing(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> Requirement | None:
    return next((requirement for requirement in requirements if not requirement.matches(labels)), None)


def _does_not_hold(requirement: Requirement, labels: Mapping[str, str]) -> Reason:
    value = labels.get(requirement.key)
    actual = f"is {value!r}" if value is not None else "is not set"
    facts = {"key": requirement.key, "found": value or "", "requirement": str(requirement)}
    return Reason("RequirementFails", f"{requirement} does not hold: {requirement.key} {actual}", facts)
