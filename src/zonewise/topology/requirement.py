"""Label requirement: a key, an operator and values, as `k8s.io/apimachinery/pkg/labels` evaluates it.

Selectors consist of requirements. Reading one from an object collects all its problems, each naming the field and what to
write instead, so that a webhook can answer them at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from zonewise.objects import View
from zonewise.topology.labels import is_subdomain, key_problem, value_problem

NODE_NAME_FIELD: Final = "metadata.name"

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,64}")  # a label value is shorter
_INT64: Final = range(-(2**63), 2**63)


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


LABEL_SELECTOR_OPERATORS: Final = (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST)
FIELD_OPERATORS: Final = (Operator.IN, Operator.NOT_IN)


class SelectorError(ValueError):
    """A selector can't be read; `problems` has one line per wrong field."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class RequirementSpec(View, frozen=True):
    """A requirement as written in an object, not yet checked."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """NotIn and DoesNotExist hold where the key is absent; Gt and Lt only between integers of 64 bits."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT | Operator.LT:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        left, right = _integer(value or ""), _integer(self.values[0])
        if left is None or right is None:
            return False
        return left > right if self.operator is Operator.GT else left < right

    def __str__(self) -> str:
        match self.operator:
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator} [{', '.join(self.values)}]"
            case Operator.EXISTS | Operator.DOES_NOT_EXIST:
                return f"{self.key} {self.operator}"
            case Operator.GT | Operator.LT:
                return f"{self.key} {self.operator} {self.values[0]}"


def read_label_requirement(
    spec: RequirementSpec, path: str, problems: list[str], allowed: Sequence[Operator] = tuple(Operator)
) -> Requirement | None:
    """The checked requirement, or None with what is wrong added to `problems`."""
    values, before = spec.values or (), len(problems)
    operator = _operator(spec, path, problems, allowed)
    if problem := key_problem(spec.key):
        problems.append(f"{path}.key: {problem}")
    if operator and (problem := _values_problem(operator, values)):
        problems.append(f"{path}.values: {problem}")
    bad_values = [(index, problem) for index, text in enumerate(values) if (problem := value_problem(text))]
    problems += [f"{path}.values[{index}]: {problem}" for index, problem in bad_values]
    return Requirement(spec.key, operator, values) if operator and len(problems) == before else None


def read_field_requirement(spec: RequirementSpec, path: str, problems: list[str]) -> Requirement | None:
    """The checked requirement on a node's name, the only field that node selectors know."""
    values, before = spec.values or (), len(problems)
    operator = _operator(spec, path, problems, FIELD_OPERATORS)
    if spec.key != NODE_NAME_FIELD:
        problems.append(f"{path}.key: {spec.key!r} is not a field to select nodes by; write {NODE_NAME_FIELD}")
    if len(values) != 1:
        problems.append(f"{path}.values: has {len(values)} values; write exactly one node name")
    problems += [
        f"{path}.values[{index}]: {name!r} is not a node name; write a DNS name in lower case"
        for index, name in enumerate(values)
        if not is_subdomain(name)
    ]
    return Requirement(spec.key, operator, values) if operator and len(problems) == before else None


def _operator(spec: RequirementSpec, path: str, problems: list[str], allowed: Sequence[Operator]) -> Operator | None:
    for operator in allowed:
        if operator == spec.operator:
            return operator
    problems.append(f"{path}.operator: {spec.operator!r} is not an operator here; write one of {', '.join(allowed)}")
    return None


def _values_problem(operator: Operator, values: tuple[str, ...]) -> str | None:
    match operator:
        case Operator.IN | Operator.NOT_IN:
            return None if values else f"is empty; {operator} needs at least one value"
        case Operator.EXISTS | Operator.DOES_NOT_EXIST:
            return f"has {len(values)} values; {operator} takes none, remove them" if values else None
        case Operator.GT | Operator.LT:
            if len(values) != 1:
                return f"has {len(values)} values; {operator} needs exactly one integer"
            return None if _integer(values[0]) is not None else f"{values[0]!r} is not an integer; {operator} needs one"


def _integer(text: str) -> int | None:
    """What Go's ParseInt(text, 10, 64) reads; Python's int() would also take underscores, spaces and other digits."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if number in _INT64 else None
