"""docs/reference.md from the code: annotations and labels, the fields of a budget, and every command with its flags.

`make reference` writes it, and a test says when it is behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api import names
from zonewise.cli.main import cli
from zonewise.cli.man import CommandEntry, entries
from zonewise.cli.schemas import ACCOUNTS, fields
from zonewise.install.components import SUMMARY, InstallComponent, InstallMode, ManifestValues, documents


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    name: str
    stands_on: str
    values: str
    meaning: str


SAID_BY_YOU = (
    ReferenceEntry(names.TOPOLOGY_KEYS, "Service, annotation", "JSON list of node labels; `*` last for any node", "preference list: the first label whose value an endpoint shares with the client's node decides"),
    ReferenceEntry(names.SAME_NODE, "Service, annotation", "`Balanced`, `Require`, `Prefer`", "traffic stays on the client's node"),
    ReferenceEntry(names.SAME_ZONE, "Service, annotation", "`Balanced`, `Require`, `Prefer`", "traffic stays in the client's zone"),
    ReferenceEntry(names.SAME_REGION, "Service, annotation", "`Balanced`, `Require`, `Prefer`", "traffic stays in the client's region"),
    ReferenceEntry(names.OLD_HINTS, "Service, annotation", "`auto`, `Auto`", "automatic hints, as stock"),
    ReferenceEntry(names.TOPOLOGY_MODE, "Service, annotation", "`Auto`, `Disabled`", "automatic hints, as stock"),
    ReferenceEntry(names.ALGORITHM, "Service, annotation", "`local`, `local-shared`, `local-weighted`, `local-opt`, `optimal`", "how Prefer shares endpoints out"),
    ReferenceEntry(names.STARTING_THRESHOLD, "Service, annotation", "a number, or so many per zone: `3x`", "endpoints from which on Prefer is worth it"),
    ReferenceEntry(names.PADDING, "Service, annotation", "a number", "how far above the threshold Prefer starts, and below it ends"),
    ReferenceEntry(names.OVERLOAD_THRESHOLD, "Service, annotation", "a percentage", "how much more than an even share an endpoint may get"),
    ReferenceEntry(names.DRAIN_ZONE, "Service, Namespace, Node, annotation", "zones, separated by commas", "traffic leaves these zones"),
    ReferenceEntry(names.PROXY_NAME_LABEL, "Service, label", "`zonewise`", "the node proxy serves it; kube-proxy leaves it alone"),
    ReferenceEntry(names.UPDATE, "StatefulSet, DaemonSet, annotation", "`Evict`", "updated by eviction, in waves over domains; with strategy OnDelete"),
    ReferenceEntry(names.PARTITION, "StatefulSet, annotation", "a number", "pods below it are not updated"),
    ReferenceEntry(names.DISRUPTION_LABEL, "Namespace, label", "`unguarded`", "budgets hold nobody back there"),
    ReferenceEntry("zonewise.dev/aggregate-to-disruption", "ClusterRole, label", "`true`", "owners of other kinds are counted by their scale"),
)  # fmt: skip
SAID_BY_US = (
    ReferenceEntry(names.ROUTING_STATE, "Service, annotation", "JSON", "how it is routed and why"),
    ReferenceEntry(names.CONSUMER, "EndpointSlice, label", "a zone, `zonewise-shared`, `zonewise-all`, ...", "who should read the slice (mode own)"),
    ReferenceEntry(names.STARTED, "EndpointSlice, annotation", "", "a preference is in force: what the next decision goes on from"),
    ReferenceEntry(names.WEIGHTS, "EndpointSlice, annotation", "JSON", "shares that hints can't say, for the node proxy"),
    ReferenceEntry(names.RESERVED, "Eviction, annotation", "a time", "its sender has charged the pod: the guard lets it pass"),
    ReferenceEntry(names.GRANTED, "Pod, annotation", "the pod's uid", "a workload controller may delete it"),
)  # fmt: skip


def reference() -> str:
    commands = list(entries(cli, ("zonewise",)))
    return "\n".join([*_head(), *_words(), *_budget(), *_components(), *_commands(commands), *_exit_codes(), *_json()])


def _head() -> list[str]:
    return [
        "# Reference",
        "",
        "Written from the code by `make reference`. What it is all for: [routing](routing.md), [proxy](proxy.md), [DNS](dns.md),",
        "[disruption](disruption.md), [plan](plan.md), [the lab](lab.md).",
        "",
    ]


def _words() -> Iterator[str]:
    yield "## Annotations and labels"
    for heading, words in (("You write", SAID_BY_YOU), ("Zonewise writes", SAID_BY_US)):
        yield from ("", f"### {heading}", "", "| name | on | values | meaning |", "|---|---|---|---|")
        yield from (f"| `{word.name}` | {word.stands_on} | {word.values} | {word.meaning} |" for word in words)
    yield ""


def _budget() -> Iterator[str]:
    (definition,) = [
        found
        for found in documents([InstallComponent.DISRUPTION], InstallMode.OVERLAY, ManifestValues(image=""))
        if found["kind"] == "CustomResourceDefinition"
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
    for name, below in schema.get("properties", {}).items():
        inner = below.get("items", below)
        where = f"{path}.{name}{'[]' if inner is not below else ''}"
        meaning = " ".join([below.get("description", ""), *_limits(below)]).strip()
        yield f"| `{where}` | {_type(below)} | {meaning} |"
        yield from _fields(where, inner)


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


def _commands(found: list[CommandEntry]) -> Iterator[str]:
    yield "## Commands"
    for entry in found:
        yield from ("", f"### {entry.name}", "", "```", entry.usage, "```", "")
        for paragraph in entry.text:
            yield from (paragraph, "")
        if entry.flags:
            yield from ("| flag | meaning |", "|---|---|")
            yield from (f"| `{_cell(flag.spelled)}` | {_cell(flag.explained)} |" for flag in entry.flags)
            yield ""
        if entry.examples:
            yield from ("```", *entry.examples, "```")
    yield ""


def _exit_codes() -> Iterator[str]:
    yield from (
        "## Exit codes",
        "",
        "The same for every command. Whatever is not 0 is told in one line on stderr, unless what was printed says it.",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | done, or fine |",
        "| 1 | what was named is not there (a Service, pod, node, claim, zone), the answer is no (`explain`, `drain --plan`), something wants looking at (`status`, `doctor`), or the server is away or forbids it |",
        "| 2 | it can't be asked so: unknown commands, flags and values, files that can't be read, a kubeconfig that says nothing |",
        "",
    )


def _json() -> Iterator[str]:
    yield from (
        "## JSON",
        "",
        "What commands print with `-o json`. Fields are added, never renamed; paths as `jq` takes them.",
    )
    for command in ACCOUNTS:
        yield from ("", f"### zonewise {command} -o json", "", "| field | type |", "|---|---|")
        yield from (f"| `{field.path}` | {_cell(field.type)} |" for field in fields(command))
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - what it is for
