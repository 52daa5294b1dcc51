"""Schemas of the JSON that commands print with `-o json`, from one struct per command.

Scripts read these fields: fields are added, but never renamed or given another meaning.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

STRUCTS: Final[Mapping[str, str]] = {
    "csi doctor": "zonewise.ceph.decide.journal_report:Findings",
    "csi journal": "zonewise.ceph.decide.journal_report:Journals",
    "doctor": "zonewise.diagnostics.decide.doctor.findings:Diagnosis",
    "drain": "zonewise.diagnostics.decide.explain.drain:DrainReport",
    "explain dns": "zonewise.diagnostics.decide.explain.dns_report:DnsReport",
    "explain eviction": "zonewise.diagnostics.decide.explain.eviction:EvictionReport",
    "explain service": "zonewise.diagnostics.decide.explain.service_report:ServiceReport",
    "explain volume": "zonewise.diagnostics.decide.explain.volume:VolumeReport",
    "lab ask": "zonewise.lab.demo.zone_answers:Account",
    "lab image build": "zonewise.lab.build.container_images:ImageReport",
    "lab list": "zonewise.lab.status:Labs",
    "lab status": "zonewise.lab.status:LabStatus",
    "lab up": "zonewise.lab.status:LabStatus",
    "plan": "zonewise.planning.comparison:Comparison",
    "simulate": "zonewise.simulator.decide.results:Results",
    "status": "zonewise.diagnostics.decide.status.report:ClusterStatus",
    "uninstall": "zonewise.install.remove:Removal",
}
"""Command to the location of its struct. `install -o json` prints Kubernetes objects and has none."""


class SchemaField(NamedTuple):
    """`path` is in the syntax of jq: `.services[].outlook.inZone`, or `.[].name` if the document is a list."""

    path: str
    type: str


def struct_of(command: str) -> Any:
    module, _, name = STRUCTS[command].partition(":")
    return getattr(importlib.import_module(module), name)


def schema(command: str) -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    import msgspec

    return msgspec.json.schema(struct_of(command))


def fields(command: str) -> Iterator[SchemaField]:
    """Every field, in the order of the output."""
    document = schema(command)
    definitions = document.get("$defs", {})
    if document.get("type") == "array":
        yield from _fields(document["items"], definitions, ".[]", ())
    else:
        yield from _fields(document, definitions, "", ())


def _fields(
    part: Mapping[str, Any], definitions: Mapping[str, Any], path: str, above: tuple[str, ...]
) -> Iterator[SchemaField]:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name not in above:
            yield from _fields(definitions[name], definitions, path, (*above, name))
        return
    for choice in part.get("anyOf", ()):
        yield from _fields(choice, definitions, path, above)
    for name, inner in part.get("properties", {}).items():
        yield SchemaField(f"{path}.{name}", _type_name(inner, definitions))
        yield from _fields(inner, definitions, f"{path}.{name}", above)
    if isinstance(part.get("items"), dict):
        yield from _fields(part["items"], definitions, f"{path}[]", above)
    if isinstance(part.get("additionalProperties"), dict):
        yield from _fields(part["additionalProperties"], definitions, f"{path}.*", above)


def _type_name(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in part:
        return _type_name(definitions[part["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type_name(choice, definitions) for choice in part["anyOf"]))
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
