"""Dumps in YAML, JSON and JSON Lines: read, or refused in one line; the quick way finds what PyYAML finds."""

from __future__ import annotations

import json
from typing import Any

import yaml

from zonewise import dump
from zonewise.objects import Node, Pod, Service

VIEWS = {"Node": Node, "Pod": Pod, "Service": Service}
OBJECTS = [
    {"apiVersion": "v1", "kind": kind, "metadata": {"name": "a", "labels": {"app": "web"}, "annotations": {"n": "x\n- y: &a *b\n"}}}
    for kind in ("Node", "Pod", "Service", "Secret")
]  # fmt: skip
SEEDS = [
    json.dumps({"kind": "List", "apiVersion": "v1", "items": OBJECTS}).encode(),
    b"\n".join(json.dumps(one).encode() for one in OBJECTS),
    yaml.safe_dump({"apiVersion": "v1", "items": OBJECTS, "kind": "List"}).encode(),
    b"apiVersion: v1\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\nkind: List\n",
    b"---\n".join(yaml.safe_dump(one).encode() for one in OBJECTS),
]
WORDS = (
    "kind", "Node", "Pod", "Service", "Secret", "List", "NodeList", "items", "metadata", "name", "labels", "spec", "podCIDRs", "apiVersion", "v1", "yes", "~", "010", "1_0", "12:30",
    "1e3", ".inf", "<<", "&a", "*a", "- ", "  kind: Node", "\n  kind: Pod", "\n- kind: Node", "---", "...", "\n---\n", "#", "|", ">", "'", '"', "{", "}", "[", "!!int", "\t", "?", "2024-01-02",
)  # fmt: skip
STYLES: tuple[dict[str, Any], ...] = ({}, {"default_flow_style": True}, {"default_flow_style": None}, {"sort_keys": False, "width": 20}, {"default_style": '"'}, {"default_style": "|"})  # fmt: skip


def check(data: bytes) -> None:
    read(data)
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return
    objects = value.get("items") if isinstance(value, dict) else None
    if not isinstance(objects, list) or not objects or len(data) % 2:  # half of them: PyYAML is slow
        return
    style = STYLES[len(data) // 2 % len(STYLES)]
    items = "".join(
        f"- {yaml.dump(one, Dumper=Dumper, **style).rstrip()}".replace("\n", "\n  ") + "\n" for one in objects
    )
    text = f"apiVersion: v1\nitems:\n{items}kind: List\n".encode()
    patient = read(b"# patient\n" + text)
    assert patient is None or read(text) == patient


class Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def read(data: bytes) -> dict[str, list[Any]] | None:
    try:
        return dump.read(data, "d", VIEWS)
    except dump.DumpError as error:
        assert "\n" not in str(error)
        return None
