"""The JSON that commands print with `-o json`: one struct each, from which its schema and its documentation follow.

Scripts read these fields: one is never renamed or given another meaning, only added.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

ACCOUNTS: Final[Mapping[str, str]] = {
    "csi doctor": "zonewise.ceph.decide.journal_report:Findings",
    "csi journal": "zonewise.ceph.decide.journal_report:Journals",
    "doctor": "zonewise.diagnostics.decide.doctor.findings:Diagnosis",
    "drain": "zonewise.diagnostics.decide.explain.drain:DrainReport",
    "explain dns": "zonewise.diagnostics.decide.explain.dns_report:DnsReport",
    "explain eviction": "zonewise.diagnostics.decide.explain.eviction:EvictionReport",
    "explain service": "zonewise.diagnostics.decide.explain.service_report:ServiceReport",
    "explain volume": "zonewise.diagnostics.decide.explain.volume:VolumeReport",
    "lab ask": "zonewise.lab.demo.zone_answers:Account",
    "lab list": "zonewise.lab.status:Labs",
    "lab status": "zonewise.lab.status:LabStatus",
    "lab up": "zonewise.lab.status:LabStatus",
    "plan": "zonewise.planning.comparison:Comparison",
    "simulate": "zonewise.simulator.decide.results:Results",
    "status": "zonewise.diagnostics.decide.status.report:ClusterStatus",
}
"""By command: where its struct lives. `install -o json` prints Kubernetes objects, which are not ours to describe."""


class SchemaField(NamedTuple):
    """`path` as jq writes it: `.services[].outlook.inZone`, `.[].name` where all is a list."""

    path: str
    type: str


def account_of(command: str) -> Any:
    module, _, name = ACCOUNTS[command].partition(":")
    return getattr(importlib.import_module(module), name)


def schema(command: str) -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    import msgspec

    return msgspec.json.schema(account_of(command))


def fields(command: str) -> Iterator[SchemaField]:
    """Every field, in the order in which it is printed."""
    whole = schema(command)
    known = whole.get("$defs", {})
    if whole.get("type") == "array":
        yield from _within(whole["items"], known, ".[]", ())
    else:
        yield from _within(whole, known, "", ())


def _within(
    part: Mapping[str, Any], known: Mapping[str, Any], path: str, above: tuple[str, ...]
) -> Iterator[SchemaField]:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name not in above:
            yield from _within(known[name], known, path, (*above, name))
        return
    for choice in part.get("anyOf", ()):
        yield from _within(choice, known, path, above)
    for name, inner in part.get("properties", {}).items():
        yield SchemaField(f"{path}.{name}", _word(inner, known))
        yield from _within(inner, known, f"{path}.{name}", above)
    if isinstance(part.get("items"), dict):
        yield from _within(part["items"], known, f"{path}[]", above)
    if isinstance(part.get("additionalProperties"), dict):
        yield from _within(part["additionalProperties"], known, f"{path}.*", above)


def _word(part: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    if "$ref" in part:
        return _word(known[part["$ref"].rpartition("/")[2]], known)
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_word(choice, known) for choice in part["anyOf"]))
    if "enum" in part:
        return " or ".join(f"`{value}`" for value in part["enum"])
    match part.get("type"):
        case "array":
            return "list"
        case "object":
            return "object"
        case str(name):
            return name
        case _:
            return "any"
