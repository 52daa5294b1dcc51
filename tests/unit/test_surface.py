"""The public surface stays as surface.json says: commands and flags, metrics, JSON, names in the cluster, what is stored.

Nothing here knows where code is kept or what a class is called, except for `cli` in `zonewise.cli.main`. So moving
and renaming within src passes, and a change that a user can see does not. Prose is left out.

A change that is meant is written down with

    python tests/unit/test_surface.py > tests/unit/surface.json

and reviewed in the diff of surface.json.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec
from click.testing import CliRunner
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

import zonewise
from zonewise.cli.main import cli

PINNED = Path(__file__).with_name("surface.json")
REFERENCE = Path(__file__).parents[2] / "docs/reference.md"
MOST_DIFFERENCES = 40

LABEL = re.compile(r"(?<![/\w.-])[a-z0-9.-]*(?:zonewise\.dev|endpointslice\.kubernetes\.io)/[\w./-]*")
"""Labels, annotations and their prefixes; not the same words within a path."""
OUR_NAME = re.compile(r"zonewise-[a-z0-9-]*[a-z0-9]|_?ZONEWISE_[A-Z_]+")
"""Leases, field managers, consumers, objects; and variables of the environment."""
DOCUMENTED = re.compile(r"^\| `([^` ]+/[^` ]+)` \|", re.MULTILINE)
"""The rows of annotations and labels in the reference."""
PROSE = {"title", "description", "message", "examples"}
NESTED = {"type", "default", "properties", "required", "items", "prefixItems", "additionalProperties", "$defs"}
USUAL = ("nargs", 1), ("flag_value", True), ("case_sensitive", True), ("readable", True)
COMPONENTS = ("slices", "disruption", "proxy", "proxy-all", "dashboard", "dns", "dns-behind", "dns-node", "csi")

STORED: Mapping[str, Collection[str]] = {
    "CSI journal entry": ("token", "thing", "state", "created_seconds"),
    "CSI stage record": ("volume", "access", "targets"),
    "annotation zonewise.dev/routing": ("policy", "sentence", "asOf", "complaints"),
    "annotation zonewise.dev/weights": ("zones", "addresses"),
    "budget status": ("observedGeneration", "allowedByDomain", "charges", "departures"),
    "lab record": ("slot", "binaries", "options", "phase"),
    "lab record of Ceph": ("store", "fsid"),
    "lab record of shaping": ("cut", "paths"),
    "lab record of the control plane": ("settings", "layout"),
    "simulator checkpoint": ("number", "inputs", "sums"),
}
"""By what is stored: fields that only its struct has, which is how it is found."""


def test_the_surface_is_as_pinned() -> None:
    """In a process of its own: a test before this one may have made metrics."""
    printed = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False, timeout=120)
    assert printed.returncode == 0, printed.stderr
    before, now = dict(_leaves(json.loads(PINNED.read_text()))), dict(_leaves(json.loads(printed.stdout)))
    changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    signed = (("-", before), ("+", now))
    lines = [f"{sign} {path}: {known[path]}" for path in changed for sign, known in signed if path in known]
    if len(lines) > MOST_DIFFERENCES:
        lines[MOST_DIFFERENCES:] = [f"... and {len(lines) - MOST_DIFFERENCES} more"]
    assert not lines, "\n".join(["the public surface changed; where that is meant, write it down anew", *lines])


def _leaves(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """With their paths. A list of words is a set: each word is a leaf."""
    if isinstance(part, list) and part and all(isinstance(value, str) for value in part):
        yield from ((f"{path} > {value}", "listed") for value in part)
    elif isinstance(part, Mapping | list) and part:
        for key, value in part.items() if isinstance(part, Mapping) else enumerate(part):
            yield from _leaves(value, f"{path} > {key}" if path else str(key))
    else:
        yield path, json.dumps(part)


def surface() -> dict[str, Any]:
    found = pkgutil.walk_packages(zonewise.__path__, "zonewise.")
    modules = [importlib.import_module(module.name) for module in found]
    commands = dict(_commands(cli, "zonewise"))
    manifests = {name: _manifests("--only", name) for name in COMPONENTS}
    manifests["slices, mode own"] = _manifests("--only", "slices", "--mode", "own")
    return {
        "annotations in the reference": sorted(set(DOCUMENTED.findall(REFERENCE.read_text()))),
        "commands": commands,
        "definitions": dict(_definitions(manifests["disruption"])),
        "exit codes of errors": sorted({str(getattr(error, "exit_code", 1)) for error in _classes(Exception)}),
        "json": {name: _shape_of(struct) for name, struct in _printed_structs(modules, commands).items()},
        "manifests": {
            name: [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in objects]
            for name, objects in manifests.items()
        },
        "metrics": dict(_metrics()),
        "names": _names(modules, json.dumps(manifests)),
        "stored": {name: _shape_of(_stored_struct(fields)) for name, fields in STORED.items()},
    }


def _commands(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[tuple[str, Any]]:
    context = click.Context(command, parent, **command.context_settings)
    found = [parameter for parameter in command.get_params(context) if parent is None or "--help" not in parameter.opts]
    yield path, {_spelled(parameter): _parameter(parameter) for parameter in found}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from _commands(below, f"{path} {name}", context)


def _spelled(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    return " / ".join(", ".join(names) for names in (parameter.opts, parameter.secondary_opts) if names)


def _parameter(parameter: click.Parameter) -> dict[str, Any]:
    """Without what is None, False or usual."""
    info = parameter.to_info_dict()
    kept = ("required", "multiple", "nargs", "envvar", "is_flag", "flag_value", "count", "hidden", "default")
    limits = {key: value for key, value in info["type"].items() if key not in {"name", "param_type"}}
    type_ = _worded(info["type"]["name"], _without_usual(limits))
    return {"type": type_, **_without_usual({key: info.get(key) for key in kept})}


def _without_usual(info: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: _plain(value) for key, value in info.items() if value is not None and value is not False}
    return {key: value for key, value in fields.items() if (key, value) not in USUAL}


def _worded(name: str, rules: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(rules, sort_keys=True)}" if rules else name


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return "computed" if callable(value) else str(value).replace(zonewise.__version__, "VERSION")


def _metrics() -> Iterator[tuple[str, Any]]:
    """Of the registry, so that it does not matter how they are declared; without those of the library itself."""
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            yield collector._name, {"type": collector._type, "labels": list(collector._labelnames)}
        elif type(collector).__module__.startswith("zonewise."):
            for family in collector.collect():
                labels = {label for sample in family.samples for label in sample.labels} - {"le", "quantile"}
                yield family.name, {"type": family.type, "labels": sorted(labels)}


def _printed_structs(modules: Collection[ModuleType], commands: Mapping[str, Any]) -> Mapping[str, Any]:
    """From the one table in the code that names all commands with `-o json`; `install` prints Kubernetes objects."""
    printing = {
        path.removeprefix("zonewise ")
        for path, parameters in commands.items()
        for spelled, said in parameters.items()
        if "--output" in spelled and '"json"' in said["type"] and path != "zonewise install"
    }
    values = [value for module in modules for value in vars(module).values()]
    table = next((value for value in values if isinstance(value, Mapping) and printing == {*value}), None)
    assert table is not None, f"no table of structs has exactly the commands {sorted(printing)}"
    return {name: pkgutil.resolve_name(to) if isinstance(to, str) else to for name, to in table.items()}


def _classes(base: Any) -> Iterator[Any]:
    """Ours, at any depth."""
    for below in base.__subclasses__():
        yield from (below,) if below.__module__.startswith("zonewise.") else ()
        yield from _classes(below)


def _stored_struct(fields: Collection[str]) -> Any:
    (found,) = {struct for struct in _classes(msgspec.Struct) if {*fields} <= {*struct.__struct_encode_fields__}}
    return found


def _shape_of(of: Any) -> Any:
    whole = msgspec.json.schema(of, schema_hook=lambda _: {"type": "string"})
    return _shape(whole, whole.get("$defs", {}))


def _shape(schema: Mapping[str, Any], known: Mapping[str, Any], above: tuple[str, ...] = ()) -> Any:
    """What a schema allows: `{field: ...}`, `[item]`, `{"*": value}` or a word, with further rules if there are any."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in above:
            return f"the same as {above[::-1].index(name) + 1} above"
        return _shape(known[name], known, (*above, name))
    if "anyOf" in schema:
        return {"any of": sorted((_shape(part, known, above) for part in schema["anyOf"]), key=json.dumps)}
    rules = _without_prose({key: value for key, value in schema.items() if key not in NESTED})
    if "prefixItems" in schema:
        return {"in this order": [_shape(part, known, above) for part in schema["prefixItems"]]}
    if isinstance(schema.get("items"), Mapping):
        return [_shape(schema["items"], known, above), *([{"rules": rules}] if rules else [])]
    fields = {}
    for name, part in schema.get("properties", {}).items():
        default = f" = {json.dumps(part['default'], sort_keys=True)}" if "default" in part else ""
        optional = "" if default or name in schema.get("required", ()) else "?"
        fields[f"{name}{optional}{default}"] = _shape(part, known, above)
    if isinstance(schema.get("additionalProperties"), Mapping):
        fields["*"] = _shape(schema["additionalProperties"], known, above)
    if fields:
        return fields | ({"rules": rules} if rules else {})
    return _worded(schema.get("type", "any"), rules)


def _without_prose(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _without_prose(value) for key, value in part.items() if key not in PROSE}
    return [_without_prose(value) for value in part] if isinstance(part, list) else part


def _names(modules: Collection[ModuleType], manifests: str) -> list[str]:
    """In literals, in constants that are put together from them, and in manifests; not in docstrings."""
    texts = {text for file in Path(zonewise.__path__[0]).rglob("*.py") for text in _literals(file)}
    for module in modules:
        texts |= {text for key, text in vars(module).items() if isinstance(text, str) and key != "__doc__"}
    labels = {name.rstrip(".-_") for text in (*texts, manifests) for name in LABEL.findall(text)}
    return sorted(labels - {"zonewise.dev/"} | set(filter(OUR_NAME.fullmatch, texts)))


def _literals(file: Path) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _manifests(*arguments: str) -> list[dict[str, Any]]:
    printed = CliRunner().invoke(cli, ["install", "-o", "json", *arguments], catch_exceptions=False).stdout
    objects: list[dict[str, Any]] = json.loads(printed)["items"]
    return objects


def _definitions(objects: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Of our own kinds, without prose."""
    for spec in [found["spec"] for found in objects if found["kind"] == "CustomResourceDefinition"]:
        for version in spec["versions"]:
            shape = _shape(version["schema"]["openAPIV3Schema"], {})
            rest = _without_prose({key: value for key, value in (spec | version).items() if key != "versions"})
            yield f"{spec['names']['kind']} {version['name']}", rest | {"schema": shape}


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1, sort_keys=True))
