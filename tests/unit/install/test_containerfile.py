"""The Containerfile as far as it can be judged without a registry: what it copies is there, and goes where it is looked for."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
TEXT = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text())
STEPS = [line.split(None, 1) for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
IGNORED = (ROOT / ".containerignore").read_text().split()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_copied_is_there() -> None:
    stages: set[str] = set()
    for word, rest in STEPS:
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            assert source in stages or "/" in source, f"no stage {source}"
            stages.add(name)
        if word == "COPY":
            *flags, source, _ = rest.split()
            origins = [flag.removeprefix("--from=") for flag in flags]
            assert set(origins) <= stages
            assert origins or (ROOT / source).exists(), source


def test_what_it_names_of_the_context_is_not_left_out() -> None:
    """Of /src, where the context goes: the lock file, and all that a build reads."""
    named = {*re.findall(r"/src/([\w.-]+)", TEXT), "src", "pyproject.toml", "hatch_build.py", PROJECT["readme"]}
    for name in named:
        assert (ROOT / name).exists(), name
        assert name not in IGNORED, name
    (extra,) = re.findall(r"'/src\[(\w+)\]'", TEXT)
    assert extra in PROJECT["optional-dependencies"]


def test_the_entry_point_is_a_program_that_manifests_give_arguments_to() -> None:
    (entry,) = [json.loads(rest) for word, rest in STEPS if word == "ENTRYPOINT"]
    assert entry == ["zonewise"]
    assert entry[0] in PROJECT["scripts"]
    users = [rest for word, rest in STEPS if word == "USER"]
    assert users
    assert all(user.isdigit() and int(user) for user in users), "runAsNonRoot can be judged by a number only"
    for manifest in (ROOT / "src/zonewise/install/manifests").glob("*.yaml"):
        for document in yaml.safe_load_all(manifest.read_text()):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            ours = [each for each in pod.get("containers", []) if each["image"] == "zonewise"]
            assert all("command" not in our or our["command"][0] == "zonewise" for our in ours), manifest.name
