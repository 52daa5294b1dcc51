"""Dumps as kubectl prints them: read alike from YAML and JSON, quickly where the form is kubectl's, refused in one line."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zonewise import dump
from zonewise.dump import DumpError
from zonewise.objects import Node, Pod

VIEWS = {"Node": Node, "Pod": Pod}


def thing(kind: str, name: str, **annotations: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "annotations": annotations}}


def as_kubectl(*objects: dict[str, Any]) -> bytes:
    listed = {"apiVersion": "v1", "items": list(objects), "kind": "List", "metadata": {"resourceVersion": ""}}
    return yaml.safe_dump(listed).encode()


def names(data: bytes) -> dict[str, list[str]]:
    return {kind: [one.metadata.name for one in found] for kind, found in dump.read(data, "d", VIEWS).items()}


OBJECTS = (thing("Node", "n1"), thing("Secret", "s"), thing("Pod", "p1"), thing("Pod", "p2"))
FORMS = {
    "kubectl's list": as_kubectl(*OBJECTS),
    "a list that says first what it is": yaml.safe_dump(
        {"apiVersion": "v1", "kind": "List", "items": list(OBJECTS)}, sort_keys=False
    ).encode(),
    "a list of another kind": yaml.safe_dump({"kind": "PodList", "items": list(OBJECTS)}).encode(),
    "documents": b"\n---\n".join(yaml.safe_dump(one).encode() for one in OBJECTS),
    "lists as documents": b"---\n" + as_kubectl(*OBJECTS[:2]) + b"---\n" + as_kubectl(*OBJECTS[2:]) + b"---\n",
    "JSON": json.dumps({"kind": "List", "items": list(OBJECTS)}).encode(),
    "a list in a list": json.dumps({"kind": "List", "items": [{"kind": "List", "items": list(OBJECTS)}]}).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_alike(form: str) -> None:
    assert names(FORMS[form]) == {"Node": ["n1"], "Pod": ["p1", "p2"]}


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20), st.text(max_size=40))
)
def test_the_quick_way_reads_what_the_library_reads(annotations: dict[str, str]) -> None:
    """Whatever stands in annotations: lines that look like items, quotes, numbers, other scripts."""
    written = as_kubectl(thing("Pod", "p", **annotations), thing("Pod", "q"))
    slow = yaml.safe_load(written)["items"][0]["metadata"]["annotations"]
    assert [pod.metadata.annotations for pod in dump.read(written, "d", VIEWS)["Pod"]] == [slow, {}]


def test_text_that_looks_like_an_item_is_none() -> None:
    text = "- apiVersion: v1\n  kind: Node\n---\n- x: &a *b\n"
    (pod,) = dump.read(as_kubectl(thing("Pod", "p", script=text)), "d", VIEWS)["Pod"]
    assert pod.metadata.annotations == {"script": text}


def test_an_item_may_be_large_and_the_next_one_small() -> None:
    large = {str(number): "x" * 100 for number in range(5_000)}
    found = dump.read(as_kubectl(thing("Pod", "p", **large), thing("Pod", "q")), "d", VIEWS)["Pod"]
    assert [pod.metadata.annotations for pod in found] == [large, {}]


def test_what_was_read_and_is_forgotten_takes_no_memory() -> None:
    data = as_kubectl(*(thing("Pod", f"p{number}", text="x" * 10_000) for number in range(200)))
    dump.read(data, "d", VIEWS)
    before = resident_mib()
    for _ in range(50):
        dump.read(data, "d", VIEWS)
    assert resident_mib() - before < 50, "100 MB were read"


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"kind": ', "d: not JSON"),
        (b'{"items": []}', "d: not a dump of Kubernetes objects"),
        (b"kind: [\n", "d:2: not YAML"),
        (b"- 1\n- 2\n", "d: not a dump of Kubernetes objects"),
        (b"hello", "d: not a dump of Kubernetes objects"),
        (b"\xff\xfe\x00", "d: not YAML"),
        (as_kubectl(thing("Node", "n"), {**thing("Pod", "p"), "spec": 5}), "d: Pod p can't be read"),
        (b'apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  x: "open\nkind: List\n', "d:"),
    ],
)
def test_what_is_broken_is_refused_in_one_line(data: bytes, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DumpError) as refused:
        dump.read(data, "d", VIEWS)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""
