"""Dumps as kubectl prints them: read alike from YAML and JSON, quickly where the form is kubectl's, refused in one line."""

from __future__ import annotations

import json
import resource
from contextlib import suppress
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


def thing(kind: str, name: str, /, **annotations: str) -> dict[str, Any]:
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
    "items in flow style": b"apiVersion: v1\nitems:\n"
    + b"".join(
        b"- {apiVersion: v1, kind: %s, metadata: {name: %s}}\n"
        % (one["kind"].encode(), one["metadata"]["name"].encode())
        for one in OBJECTS
    )
    + b"kind: List\n",
    "items that say first what they are": yaml.safe_dump(
        {"apiVersion": "v1", "items": [dict(reversed(one.items())) for one in OBJECTS], "kind": "List"}, sort_keys=False
    ).encode(),
    "items that say in quotes what they are": as_kubectl(*OBJECTS).replace(b"kind: Node", b'kind: "Node"'),
    "items with a comment": as_kubectl(*OBJECTS).replace(b"kind: Node", b"kind: Node # the only one"),
    "items indented by more": as_kubectl(*OBJECTS).replace(b"\n  ", b"\n    ").replace(b"\n- ", b"\n-   "),
    "a list of another kind among the items": as_kubectl({"kind": "NodeList", "items": [OBJECTS[0]]}, *OBJECTS[1:]),
    "documents with a comment after the mark": as_kubectl(*OBJECTS[1:])
    + b"--- # next\n"
    + yaml.safe_dump(OBJECTS[0]).encode(),
    "one document in flow style": b"{kind: List, items: %s}" % json.dumps(list(OBJECTS)).encode(),
    "JSON Lines": b"".join(json.dumps(one).encode() + b"\n" for one in OBJECTS),
    "JSON Lines with empty ones, and a list": b"\n"
    + b"\r\n\n".join(json.dumps(one).encode() for one in ({"kind": "List", "items": list(OBJECTS[:2])}, *OBJECTS[2:])),
    "JSON over several lines": json.dumps({"kind": "List", "items": list(OBJECTS)}, indent=1).encode(),
    "a list in a list": json.dumps({"kind": "List", "items": [{"kind": "List", "items": list(OBJECTS)}]}).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_alike(form: str) -> None:
    assert names(FORMS[form]) == {"Node": ["n1"], "Pod": ["p1", "p2"]}


SCALARS = st.one_of(
    st.sampled_from(
        [
            "yes",
            "no",
            "on",
            "off",
            "y",
            "~",
            "null",
            "Null",
            "true",
            "TRUE",
            "010",
            "0x1F",
            "1_000",
            "12:30:45",
            "1e3",
            ".inf",
            "+5",
            "=",
            "<<",
            "&a",
            "*a",
            "!a",
            "%a",
            "@a",
            "`a",
            "{a}",
            "[a]",
            "-",
            "?",
            ":",
            "#",
            "|",
            ">",
            "\t",
            "x:",
        ]
    ),
    st.text(max_size=12),
    st.from_regex(r"[-+]?[0-9_.:eExob]{1,8}", fullmatch=True),
)
PODS = st.builds(lambda name, more: thing("Pod", name, **more), SCALARS, st.dictionaries(SCALARS, SCALARS, max_size=3))
NODES = st.builds(lambda name, text: {**thing("Node", name), "note": text}, SCALARS, SCALARS)
STYLES = st.fixed_dictionaries(
    {
        "default_flow_style": st.sampled_from([True, False, None]),
        "default_style": st.sampled_from([None, '"', "'", "|"]),
        "sort_keys": st.booleans(),
        "indent": st.sampled_from([2, 4]),
        "width": st.sampled_from([20, 80, 1000]),
        "allow_unicode": st.booleans(),
    }
)


@given(st.lists(st.one_of(PODS, NODES), max_size=4), STYLES)
def test_quick_and_patient_reader_agree_on_every_style(objects: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Items in the style, within kubectl's list and as the whole document. Indented so, a few are no longer YAML."""
    items = "".join(
        f"- {yaml.safe_dump(one, **style).rstrip()}".replace("\n", "\n  ") + "\n" for one in objects
    ).replace("\n  ...", "")
    for text in (
        f"apiVersion: v1\nitems:\n{items}kind: List\n" if objects else "kind: List\n",
        "---\n" + yaml.safe_dump({"apiVersion": "v1", "items": objects, "kind": "List"}, **style),
    ):
        alike(text.encode())


@given(
    st.lists(st.one_of(SCALARS, st.sampled_from(["- ", "  ", "kind: ", "Pod", "name: ", "\n", ", ", "}"])), max_size=12)
)
def test_quick_and_patient_reader_agree_on_text_among_the_fields(words: list[str]) -> None:
    text = "".join(words)
    for field in (f"  note: {text}\n", f"  {text}\n", f"  note:\n    {text}\n"):
        alike(f"apiVersion: v1\nitems:\n- apiVersion: v1\n{field}  kind: Pod\n  metadata: {{}}\nkind: List\n".encode())


def alike(data: bytes) -> bool:
    """Whether PyYAML can read it; then the quick way has to find the same. On broken text it may be more lenient."""
    try:
        patient = dump.read(b"# not kubectl's\n" + data, "d", VIEWS)
    except DumpError:
        with suppress(DumpError):
            dump.read(data, "d", VIEWS)
        return False
    assert dump.read(data, "d", VIEWS) == patient
    return True


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


@pytest.mark.parametrize("head", ["|", "|-", "|+", ">", ">+"])
def test_text_at_the_end_of_an_item_keeps_its_last_line_break(head: str) -> None:
    item = f"- apiVersion: v1\n  kind: Pod\n  metadata:\n    annotations:\n      a: {head}\n        x\n        y\n"
    assert alike(f"apiVersion: v1\nitems:\n{item}{item}kind: List\n".encode())


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
        (b'{"kind": "Node"}\n{"kind": \n', "d:2: not JSON"),
        (b'{"kind": "Node"}\n[]\n', "d:2: not a dump of Kubernetes objects"),
        (b"kind: " + b"[" * 100_000, "d: not YAML"),
        (b'{"kind": "List", "items": ' + b"[" * 100_000, "d: not JSON"),
        (b"- 1\n- 2\n", "d: not a dump of Kubernetes objects"),
        (b"hello", "d: not a dump of Kubernetes objects"),
        (b"\xff\xfe\x00", "d: not YAML"),
        (as_kubectl(thing("Node", "n"), {**thing("Pod", "p"), "spec": 5}), "d: Pod 'p' can't be read"),
        (b'{"kind": "Pod", "metadata": {"name": "\xff"}}', "d: Pod without a name can't be read"),
        (
            b'{"kind": "Pod", "spec": {"nodeName": "\xb8"}, "metadata": {"name": "a\\nb"}}',
            "d: Pod 'a\\nb' can't be read",
        ),
        (b'apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  x: "open\nkind: List\n', "d:"),
    ],
)
def test_what_is_broken_is_refused_in_one_line(data: bytes, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DumpError) as refused:
        dump.read(data, "d", VIEWS)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""
