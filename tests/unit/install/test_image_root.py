"""Which Debian packages and files an image's root is put together from."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load() -> ModuleType:
    path = Path(__file__).parents[3] / "deploy/image_root.py"
    specification = importlib.util.spec_from_file_location("image_root", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


image_root = load()


def package(name: str, *paths: str) -> object:
    return image_root.Package(name, "1", {path: Path("/", path) for path in paths})


@pytest.mark.parametrize(
    ("path", "patterns", "taken"),
    [
        ("usr/bin/rbd", ("*",), True),
        ("usr/bin/rbd", ("usr/bin/rbd",), True),
        ("usr/bin/rados", ("usr/bin/rbd",), False),
        ("usr/bin/cat", ("bin/cat",), True),
        ("usr/share/man/man1/rbd.1.gz", ("*",), False),
        ("usr/share/doc/rbd/copyright", ("*",), False),
        ("usr/lib/python3.11/test/support.py", ("*",), False),
        ("usr/lib/python3.11/unittest/case.py", ("*",), True),
    ],
)
def test_files_of_a_package_follow_its_patterns(path: str, patterns: tuple[str, ...], taken: bool) -> None:
    assert image_root.wanted(path, patterns) is taken


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("bin/cat", "usr/bin/cat"),
        ("lib64/ld.so", "usr/lib64/ld.so"),
        ("usr/bin/rbd", "usr/bin/rbd"),
        ("etc/a", "etc/a"),
    ],
)
def test_paths_follow_the_links_into_usr(path: str, place: str) -> None:
    assert image_root.merged(path) == place


def test_arguments_select_packages_and_parts_of_packages() -> None:
    assert image_root.selection(["dash", "coreutils=bin/cat,bin/ls", "libpython3*"]) == {
        "dash": ("*",),
        "coreutils": ("bin/cat", "bin/ls"),
        "libpython3*": ("*",),
    }


def test_needed_libraries_are_read_from_readelf() -> None:
    line = " 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n"
    assert image_root.needed(f"File: a\n{line} 0x000000000000000e (SONAME)  Library soname: [libz.so.1]\n") == {
        "libc.so.6"
    }


def test_libraries_of_libraries_are_added_and_nothing_else() -> None:
    taken = {"rbd": package("rbd", "usr/bin/rbd")}
    others = {
        "librbd1": package("librbd1", "usr/lib/librbd.so.1"),
        "libc6": package("libc6", "usr/lib/libc.so.6"),
        "perl": package("perl", "usr/lib/libperl.so.5"),
    }
    loads = {"rbd": {"librbd.so.1"}, "librbd1": {"libc.so.6", "libgone.so"}, "libc6": set(), "perl": {"libx.so"}}
    assert image_root.add_libraries(taken, others, lambda package: loads[package.name]) == {"libgone.so"}
    assert sorted(taken) == ["libc6", "librbd1", "rbd"]


def test_library_of_a_package_taken_in_part_is_added_alone(tmp_path: Path) -> None:
    link = tmp_path / "libown.so.1"
    link.symlink_to("libown.so.1.2")
    files = {f"usr/lib/{name}": tmp_path / name for name in (link.name, "libown.so.1.2", "libother.so")}
    whole = image_root.Package("common", "1", {"usr/bin/tool": tmp_path / "tool", "usr/bin/not": tmp_path, **files})
    taken = {"common": image_root.part(whole, ["usr/bin/tool"])}
    others = {"common": whole, "libc6": package("libc6", "usr/lib/libc.so.6")}

    def loads(of: Any) -> set[str]:
        return {"usr/bin/tool": {"libown.so.1"}, "usr/lib/libown.so.1": {"libc.so.6"}}.get(min(of.files), set())

    assert image_root.add_libraries(taken, others, loads) == set()
    assert sorted(taken) == ["common", "libc6"]
    assert sorted(taken["common"].files) == ["usr/bin/tool", "usr/lib/libown.so.1", "usr/lib/libown.so.1.2"]


def test_copyright_is_found_where_the_documentation_is_a_link(tmp_path: Path) -> None:
    for name in ("gcc-12-base", "zlib1g"):
        place = tmp_path / name / "usr/share/doc" / name
        place.mkdir(parents=True)
        (place / "copyright").write_text(name)
    linking = tmp_path / "libstdc++6/usr/share/doc/libstdc++6"
    linking.parent.mkdir(parents=True)
    linking.symlink_to("gcc-12-base")
    assert image_root.copyright_of("zlib1g", tmp_path).read_text() == "zlib1g"
    assert image_root.copyright_of("libstdc++6", tmp_path).read_text() == "gcc-12-base"
