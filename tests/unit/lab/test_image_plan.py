"""Names, inputs and progress of image builds."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from zonewise.lab.decide import image_plan
from zonewise.lab.decide.image_plan import BuildArguments, ImageTarget
from zonewise.lab.nodes import mounts

ROOT = Path(__file__).parents[3]
KEY = "0123456789ab"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("src/zonewise/cli/main.py", True),
        ("src/zonewise/ceph/spec/csi.proto", True),
        ("src/zonewise/ceph/spec/csi_pb2.py", False),
        ("src/zonewise/cli/__pycache__/main.cpython-311.pyc", False),
    ],
)
def test_generated_files_are_no_sources(path: str, source: bool) -> None:
    assert image_plan.is_source(path) is source


def test_hash_follows_every_source_and_the_base() -> None:
    sources = {"a": b"1", "b": b"2"}
    key = image_plan.sources_hash(sources, "base")
    assert re.fullmatch("[0-9a-f]{12}", key)
    assert image_plan.sources_hash(dict(reversed(sources.items())), "base") == key
    changed = [
        ({**sources, "a": b"2"}, "base"),
        ({"a": b"1", "c": b"2"}, "base"),
        ({"a": b"1"}, "base"),
        (sources, "other"),
    ]
    assert key not in {image_plan.sources_hash(files, base) for files, base in changed}


def test_archives_of_one_target_are_not_those_of_the_other() -> None:
    names = {target: image_plan.archive_name(target, KEY) for target in ImageTarget}
    for target in ImageTarget:
        pattern = image_plan.archive_pattern(target)
        assert [other for other in ImageTarget if fnmatchcase(names[other], pattern)] == [target]


def test_image_is_never_named_latest() -> None:
    assert image_plan.image_name(ImageTarget.CSI, "1.2.3", KEY) == f"localhost/zonewise-csi:1.2.3-{KEY}"


@pytest.mark.parametrize(
    ("os_release", "suite"),
    [
        ('ID=debian\nVERSION_CODENAME=trixie\nNAME="Debian GNU/Linux"\n', "trixie"),
        ('ID="debian"\nVERSION_CODENAME="bookworm"\n', "bookworm"),
        ("ID=debian\n", "bookworm"),  # unstable has no name
        ("ID=ubuntu\nVERSION_CODENAME=noble\n", "bookworm"),
        ("", "bookworm"),
    ],
)
def test_suite_is_that_of_a_debian_machine(os_release: str, suite: str) -> None:
    assert image_plan.suite(os_release) == suite


def test_every_archive_is_checked_with_the_keys_of_debian() -> None:
    """Another system's apt does not trust them by itself."""
    sources = [word for word in image_plan.bootstrap_arguments("bookworm") if word.startswith("deb ")]
    assert [source.split()[3] for source in sources] == ["bookworm", "bookworm-updates", "bookworm-security"]
    assert all(source.startswith(f"deb [signed-by={image_plan.KEYRING}] http") for source in sources)


def test_build_pins_the_base_and_pulls_nothing() -> None:
    arguments = BuildArguments("localhost/base@sha256:1", "1.2.3", "/etc/ssl/authorities.crt")
    words = image_plan.build_arguments(ImageTarget.CSI, "localhost/zonewise-csi:1", arguments, Path("/context"))
    assert {"build", "--pull-never", "--isolation=chroot", "--timestamp=0", "--target=csi"} <= set(words)
    assert {"--build-arg=BASE=localhost/base@sha256:1", "--build-arg=VERSION=1.2.3"} <= set(words)
    (volume,) = [word for word in words if word.startswith("--volume=")]
    mounted = volume.split(":")[1]
    assert f"--build-arg=PIP_CERT={mounted}" in words
    plain = image_plan.build_arguments(ImageTarget.CSI, "n", BuildArguments("b", "1"), Path("/context"))
    assert not [word for word in plain if "PIP" in word or word.startswith("--volume")]


def test_targets_are_stages_of_the_containerfile() -> None:
    text = (ROOT / image_plan.CONTAINERFILE).read_text()
    stages = set(re.findall(r"(?m)^FROM \S+ AS (\S+)", text))
    assert {target.stage for target in ImageTarget} <= stages
    given = set(re.findall(r"(?m)^ARG (\w+)", text))
    words = image_plan.build_arguments(
        ImageTarget.CSI, "n", BuildArguments("b", "1", "/c", own_index=True), Path("/context")
    )
    assert {word.split("=")[1] for word in words if word.startswith("--build-arg=")} <= given
    assert "--build-arg=PIP_INDEX_URL" in words  # without the value, which may hold a password


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("[1/4] STEP 1/5: FROM base", ("FROM base", 0.0)),
        ("[3/4] STEP 2/4: RUN a  b\n", ("RUN a b", 0.5625)),
        ("Get:1 http://deb.debian.org STEP", None),
    ],
)
def test_progress_is_read_from_the_steps_of_buildah(line: str, progress: tuple[str, float] | None) -> None:
    assert image_plan.progress(line) == progress


def test_archives_used_last_are_kept() -> None:
    archives = [(float(number), Path(str(number))) for number in (2, 4, 1, 3)]
    assert image_plan.unused(archives, 2) == [Path("2"), Path("1")]


def test_only_mounts_that_a_build_needs_are_kept() -> None:
    points = (
        *("/", "/proc", "/sys/fs/cgroup/cpu", "/dev/shm", "/run", "/run/netns/lab", "/tmp", "/tmp/test/volume"),
        *("/home/of\\040user", "/home/other", "/home/of\\040user/.cache/zonewise/images/volume", "/usr"),
        *("/etc/resolv.conf", "/etc/hosts", "/usr/lib/driver"),
    )
    mountinfo = "".join(f"1 2 0:3 / {point} rw - ext4 /dev/loop0 rw\n" for point in points)
    needed = ("/home/of user/.cache/zonewise/images", "/tmp/scratch", "/usr", "/run")
    foreign = ["/run/netns/lab", "/tmp/test/volume", "/home/other", "/home/of user/.cache/zonewise/images/volume"]
    assert image_plan.foreign_mounts(mountinfo, needed) == foreign


def test_file_system_that_a_kept_path_links_to_is_kept(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "cache").symlink_to("large")
    mountinfo = f"1 2 0:3 / {tmp_path / 'large'} rw - ext4 /dev/loop0 rw\n"
    needed = [str(tmp_path / "cache/images")]
    assert image_plan.foreign_mounts(mountinfo, needed) == [str(tmp_path / "large")]
    assert image_plan.foreign_mounts(mountinfo, mounts.with_targets(needed)) == []


@pytest.mark.parametrize(
    ("line", "outdated"),
    [
        ("E: Failed to fetch http://mirror/pool/a.deb  404  Not Found [IP: 192.0.2.1 80]", True),
        ("E: Unable to locate a", False),
    ],
)
def test_packages_that_the_mirror_replaced_are_known_by_its_answer(line: str, outdated: bool) -> None:
    assert image_plan.is_outdated(["STEP 1/2", line, "exit status 1"]) is outdated
