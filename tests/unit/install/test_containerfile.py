"""The Containerfile as far as it can be judged without a registry: what it copies is there, and goes where it is looked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import zonewise

ROOT = Path(__file__).parents[3]
TEXT = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text())
STEPS = [line.split(None, 1) for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
IGNORED = (ROOT / ".containerignore").read_text().split()
FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = FILE["project"]


def test_what_is_copied_is_there() -> None:
    stages: set[str] = set()
    for word, rest in STEPS:
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            assert source in {*stages, "${BASE}", "scratch"}, f"no stage {source}"
            stages.add(name)
        if word == "COPY":
            words = rest.split()
            origins = [word.removeprefix("--from=") for word in words if word.startswith("--")]
            assert set(origins) <= stages
            assert origins or all((ROOT / source).exists() for source in words[:-1]), rest


def test_what_it_names_of_the_context_is_not_left_out() -> None:
    """Of /src, where the context goes: the lock files, and all that a build reads."""
    named = {*re.findall(r"/src/([\w./-]+)", TEXT), "src", "pyproject.toml", "hatch_build.py", PROJECT["readme"]}
    for name in named:
        assert (ROOT / name).exists(), name
        assert name.partition("/")[0] not in IGNORED, name


def test_base_is_pinned_unless_said_otherwise() -> None:
    assert ["ARG", "BASE"] in STEPS, "without a default"
    check = next(rest for word, rest in STEPS if word == "RUN")
    for base, unpinned, status in (
        ("debian:bookworm-slim", "no", 1),
        ("debian:bookworm-slim", "yes", 0),
        (f"debian@sha256:{'0' * 64}", "no", 0),
    ):
        environment = {"BASE": base, "UNPINNED_BASE": unpinned}
        assert subprocess.run(["/bin/sh", "-c", check], check=False, env=environment).returncode == status, environment


def test_every_package_is_checked_by_hash() -> None:
    installs = re.findall(r"pip(?: --python \S+)? install ([^&]*)", TEXT)
    assert len(installs) == 3
    for install in installs:
        wheel_of_ours = {"--no-index", "--no-deps"} <= set(install.split())
        assert wheel_of_ours or {"--require-hashes", "--only-binary"} <= set(install.split()), install
    assert "-m hatchling build" in TEXT, "no front end that fetches a build backend"


def test_locks_of_the_image_are_parts_of_the_tested_one() -> None:
    whole = pins((ROOT / "requirements.lock").read_text())
    for name in ("requirements-image.lock", "requirements-build.lock"):
        part = pins((ROOT / name).read_text())
        assert part.items() <= whole.items(), name
        assert all(hashes for _, hashes in part.values())


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements-image.lock", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["csi"]]),
        ("requirements-build.lock", FILE["build-system"]["requires"]),
    ],
)
def test_locks_have_what_the_package_asks_for(lock: str, wanted: list[str]) -> None:
    assert {requirement.split(">")[0].strip().lower() for requirement in wanted} <= pins(
        (ROOT / lock).read_text()
    ).keys()
    assert sorted(FILE["build-system"]["requires"]) == sorted(FILE["dependency-groups"]["build"])


def pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    parts = re.split(r"\n(?=\w)", lock.strip())
    return {
        part.partition("==")[0]: (part.partition("==")[2].split()[0], frozenset(re.findall(r"--hash=(\S+)", part)))
        for part in parts
    }


def test_labels_name_this_version() -> None:
    assert zonewise.__version__ not in TEXT, "it is an argument"
    assert re.findall(r'image\.version="([^"]+)"', TEXT) == ["${VERSION}"] * 2
    (command,) = re.findall(r"(?m)^# +VERSION=\$\((.+)\)$", TEXT)
    printed = subprocess.run(["/bin/sh", "-c", command], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert printed.strip() == zonewise.__version__
    for stage in re.split(r"(?m)^FROM ", TEXT)[1:]:
        used = {name for name in ("BASE", "SOURCE_DATE_EPOCH", "VERSION") if f"${{{name}}}" in stage.partition("\n")[2]}
        assert used <= set(re.findall(r"(?m)^ARG (\w+)", stage)), "an argument holds for one stage"


def test_bill_of_materials_lists_every_package() -> None:
    lock = ROOT / "requirements-image.lock"

    def make() -> bytes:
        command = [sys.executable, str(ROOT / "deploy/sbom.py"), str(lock)]
        listing = b"libc6:amd64\t2.36-9+deb12u10\npython3\t3.11.2-1\n"
        environment = {"SOURCE_DATE_EPOCH": "86400"}
        return subprocess.run(command, check=True, input=listing, capture_output=True, env=environment).stdout

    made = json.loads(make())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["timestamp"] == "1970-01-02T00:00:00+00:00"
    assert made["metadata"]["component"]["version"] == zonewise.__version__
    python = {f"pkg:pypi/{name}@{version}" for name, (version, _) in pins(lock.read_text()).items()}
    debian = {"pkg:deb/debian/libc6@2.36-9%2Bdeb12u10", "pkg:deb/debian/python3@3.11.2-1"}
    assert {component["purl"] for component in made["components"]} == python | debian
    assert make() == make()


def test_the_entry_point_is_a_program_that_manifests_give_arguments_to() -> None:
    entries = [json.loads(rest) for word, rest in STEPS if word == "ENTRYPOINT"]
    assert entries == [["zonewise"]] * 2
    assert "zonewise" in PROJECT["scripts"]
    users = [rest for word, rest in STEPS if word == "USER"]
    assert len(users) == 2
    assert all(user.isdigit() and int(user) for user in users), "runAsNonRoot can be judged by a number only"
    for manifest in (ROOT / "src/zonewise/install/manifests").glob("*.yaml"):
        for document in yaml.safe_load_all(manifest.read_text()):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            ours = [each for each in pod.get("containers", []) if each["image"] == "zonewise"]
            assert all("command" not in our or our["command"][0] == "zonewise" for our in ours), manifest.name
