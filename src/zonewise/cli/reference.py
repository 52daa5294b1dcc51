"""Generator of docs/reference.md: annotations and labels, fields of a budget, and all commands with their flags.

`make reference` writes the file, and a test fails if it is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zonewise.api import names
from zonewise.cli.main import cli
from zonewise.cli.man import CommandEntry, entries
from zonewise.cli.schemas import STRUCTS, fields
from zonewise.install.components import SUMMARY, InstallComponent, InstallMode, ManifestValues, documents


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    name: str
    object: str
    values: str
    meaning: str


USER_NAMES: Final = (
    ReferenceEntry(names.TOPOLOGY_KEYS, "Service, annotation", "JSON list of node labels; `*` last for any node", "preference list: the first label whose value an endpoint shares with the client's node decides"),
    ReferenceEntry(names.SAME_NODE, "Service, annotation", "`Balanced`, `Require`, `Prefer`", "traffic stays on the client's node"),
    ReferenceEntry(names.SAME_ZONE, "Service, annotation", "`Balanced`, `Require`, `Prefer`", "traffic stays in the client's zone"),
    ReferenceEntry(names.SAME_REGION, "Service, annotation", "`Balanced`, `Require`, `Prefer`", "traffic stays in the client's region"),
    ReferenceEntry(names.OLD_HINTS, "Service, annotation", "`auto`, `Auto`", "automatic hints, as in stock Kubernetes"),
    ReferenceEntry(names.TOPOLOGY_MODE, "Service, annotation", "`Auto`, `Disabled`", "automatic hints, as in stock Kubernetes"),
    ReferenceEntry(names.ALGORITHM, "Service, annotation", "`local`, `local-shared`, `local-weighted`, `local-opt`, `optimal`", "how Prefer assigns endpoints to zones"),
    ReferenceEntry(names.STARTING_THRESHOLD, "Service, annotation", "a number, or a number per zone: `3x`", "number of endpoints from which Prefer applies"),
    ReferenceEntry(names.PADDING, "Service, annotation", "a number", "hysteresis: Prefer starts this far above the threshold and ends this far below it"),
    ReferenceEntry(names.OVERLOAD_THRESHOLD, "Service, annotation", "a percentage", "highest load of an endpoint above an even share"),
    ReferenceEntry(names.DRAIN_ZONE, "Service, Namespace, Node, annotation", "zones, separated by commas", "no traffic goes to these zones"),
    ReferenceEntry(names.PROXY_NAME_LABEL, "Service, label", "`zonewise`", "the node proxy serves the Service, and kube-proxy ignores it"),
    ReferenceEntry(names.UPDATE, "StatefulSet, DaemonSet, annotation", "`Evict`", "pods are updated by eviction, in waves over domains; needs the strategy OnDelete"),
    ReferenceEntry(names.PARTITION, "StatefulSet, annotation", "a number", "pods with a lower ordinal are not updated"),
    ReferenceEntry(names.DISRUPTION_LABEL, "Namespace, label", "`unguarded`", "budgets are not enforced in this namespace"),
    ReferenceEntry(names.AGGREGATE_LABEL, "ClusterRole, label", "`true`", "grants the controller the scale subresource of other kinds of owners"),
)  # fmt: skip
SYSTEM_NAMES: Final = (
    ReferenceEntry(names.ROUTING_STATE, "Service, annotation", "JSON", "how the Service is routed, and why"),
    ReferenceEntry(names.CONSUMER, "EndpointSlice, label", "a zone, `zonewise-shared`, `zonewise-all`, ...", "clients that the slice is for (mode own)"),
    ReferenceEntry(names.STARTED, "EndpointSlice, annotation", "", "domains whose preference is in force; input of the next decision"),
    ReferenceEntry(names.WEIGHTS, "EndpointSlice, annotation", "JSON", "weights for the node proxy that hints can't express"),
    ReferenceEntry(names.RESERVED, "Eviction, annotation", "a time", "the sender has charged the pod already; the guard admits the eviction"),
    ReferenceEntry(names.GRANTED, "Pod, annotation", "the pod's uid", "a workload controller may delete it"),
    ReferenceEntry(names.INSTANCE_LABEL, "installed objects, label", "a namespace", "the install that the object belongs to"),
)  # fmt: skip


def reference() -> str:
    commands = list(entries(cli, ("zonewise",)))
    return "\n".join([*_head(), *_names(), *_budget(), *_components(), *_commands(commands), *_exit_codes(), *_json()])


def _head() -> list[str]:
    return [
        "# Reference",
        "",
        "Generated from the code by `make reference`. For the concepts, see [routing](routing.md), [proxy](proxy.md), [DNS](dns.md),",
        "[disruption](disruption.md), [plan](plan.md), [the lab](lab.md).",
        "",
    ]


def _names() -> Iterator[str]:
    yield "## Annotations and labels"
    for heading, table in (("You write", USER_NAMES), ("Zonewise writes", SYSTEM_NAMES)):
        yield from ("", f"### {heading}", "", "| name | on | values | meaning |", "|---|---|---|---|")
        yield from (f"| `{entry.name}` | {entry.object} | {entry.values} | {entry.meaning} |" for entry in table)
    yield ""


def _budget() -> Iterator[str]:
    (definition,) = [
        document
        for document in documents([InstallComponent.DISRUPTION], InstallMode.OVERLAY, ManifestValues(image=""))
        if document["kind"] == "CustomResourceDefinition"
    ]
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    kind, group = definition["spec"]["names"]["kind"], definition["spec"]["group"]
    yield from (f"## {kind} (`{group}/{version['name']}`)", "", schema["description"], "")
    yield from ("| field | type | meaning |", "|---|---|---|")
    for field in ("spec", "status"):
        yield from _fields(field, schema["properties"][field])
    yield ""


def _fields(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        inner = field.get("items", field)
        field_path = f"{path}.{name}{'[]' if inner is not field else ''}"
        meaning = " ".join([field.get("description", ""), *_limits(field)]).strip()
        yield f"| `{field_path}` | {_type(field)} | {meaning} |"
        yield from _fields(field_path, inner)


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "number or percentage"
    if schema["type"] == "array":
        return f"list of {schema['items']['type']}"
    return str(schema["type"])


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    inner = schema.get("items", schema)
    if "enum" in inner:
        yield f"One of {', '.join(f'`{value}`' for value in inner['enum'])}."
    if "default" in schema:
        default = schema["default"]
        yield f"Default {', '.join(f'`{value}`' for value in (default if isinstance(default, list) else [default]))}."


def _components() -> Iterator[str]:
    yield from ("## Components of `zonewise install`", "", "| name | what |", "|---|---|")
    yield from (f"| `{component}` | {SUMMARY[component]} |" for component in InstallComponent)
    yield ""


def _commands(commands: list[CommandEntry]) -> Iterator[str]:
    yield "## Commands"
    for entry in commands:
        yield from ("", f"### {entry.name}", "", "```", entry.usage, "```", "")
        for paragraph in entry.text:
            yield from (paragraph, "")
        if entry.flags:
            yield from ("| flag | meaning |", "|---|---|")
            yield from (f"| `{_cell(flag.spelling)}` | {_cell(flag.help)} |" for flag in entry.flags)
            yield ""
        if entry.examples:
            yield from ("```", *entry.examples, "```")
    yield ""


def _exit_codes() -> Iterator[str]:
    yield from (
        "## Exit codes",
        "",
        "The same for every command. An exit code other than 0 comes with one line on stderr, unless the output shows the reason.",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | success |",
        "| 1 | an object does not exist (Service, pod, node, claim, zone), the answer is no (`explain`, `drain --plan`), something needs attention (`status`, `doctor`), or the server is unavailable or denies access |",
        "| 2 | usage error: an unknown command, flag or value, a file that can't be read, or an invalid kubeconfig |",
        "",
    )


def _json() -> Iterator[str]:
    yield from (
        "## JSON",
        "",
        "Output of commands with `-o json`. Fields are added, but never renamed. Paths are in the syntax of `jq`.",
    )
    for command in STRUCTS:
        yield from ("", f"### zonewise {command} -o json", "", "| field | type |", "|---|---|")
        yield from (f"| `{field.path}` | {_cell(field.type)} |" for field in fields(command))
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - the output of this module
