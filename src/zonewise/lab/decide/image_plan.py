"""Container images of Zonewise: which sources they are made of, their names, and how far a build is. Pure."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTAINERFILE: Final = "Containerfile"
FILES: Final = (
    *(CONTAINERFILE, "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"),
    *("requirements-build.lock", "requirements-image.lock", "deploy/image_root.py", "deploy/sbom.py"),
)
"""What images are made of, beside the package."""
PACKAGE: Final = "src/zonewise"
DEFAULT_SUITE: Final = "bookworm"
BASE_PACKAGES: Final = ("binutils", "ca-certificates", "python3", "python3-venv")
"""In the base, so that the build does not fetch them each time."""
KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""Debian's keys, which apt of another system does not trust by itself. The same path is right inside the base, too."""
_MIRROR, _SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
_HASH_LENGTH: Final = 12
_SYSTEM: Final = ("/dev", "/etc", "/proc", "/sys", "/usr")
"""What is mounted below these stays: the kernel's, and in a container files such as /etc/resolv.conf."""
_GENERATED: Final = ("_pb2.py", "_pb2.pyi", ".pyc")
_STEP: Final = re.compile(r"\[(\d+)/(\d+)\] STEP (\d+)/(\d+): (.+)")


class ImageTarget(enum.Enum):
    """Target of the Containerfile, and name of its image."""

    PROGRAMS = "zonewise"
    CSI = "zonewise-csi"

    @property
    def stage(self) -> str:
        return "zonewise" if self is ImageTarget.PROGRAMS else "csi"


@dataclass(frozen=True, slots=True)
class BuildArguments:
    """What differs from one build to another."""

    base: str
    """Name and digest."""
    version: str
    certificates: str = ""
    """File of this machine with the authorities that pip trusts; nothing of it gets into an image."""
    own_index: bool = False
    """Whether PIP_INDEX_URL in the environment names pip's index. It may hold a password, and all users see command lines."""


def is_source(path: str) -> bool:
    """Of the paths below the package: generated files are left out."""
    return not path.endswith(_GENERATED) and "__pycache__" not in path.split("/")


def sources_hash(sources: Mapping[str, bytes], base_digest: str) -> str:
    total = hashlib.sha256(base_digest.encode())
    for path, content in sorted(sources.items()):
        total.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()[:_HASH_LENGTH]


def image_name(target: ImageTarget, version: str, key: str) -> str:
    """Never `latest`: Kubernetes would try to pull it."""
    return f"localhost/{target.value}:{version}-{key}"


def archive_name(target: ImageTarget, key: str) -> str:
    return f"{target.value}-{key}.tar"


def archive_pattern(target: ImageTarget) -> str:
    """Names of archives of the target, whatever their sources: for glob."""
    return archive_name(target, "[0-9a-f]" * _HASH_LENGTH)


def suite(os_release: str) -> str:
    """Debian suite of a machine, from its /etc/os-release; another system builds the default one."""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    return fields.get("VERSION_CODENAME", DEFAULT_SUITE) if fields.get("ID") == "debian" else DEFAULT_SUITE


def bootstrap_arguments(release: str) -> list[str]:
    """Arguments of mmdebstrap but for the file that it writes."""
    archives = ((_MIRROR, release), (_MIRROR, f"{release}-updates"), (_SECURITY, f"{release}-security"))
    sources = [f"deb [signed-by={KEYRING}] {mirror} {suite} main" for mirror, suite in archives]
    return ["--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", release, "-", *sources]


def bootstrap_hash(release: str) -> str:
    return hashlib.sha256("\n".join(bootstrap_arguments(release)).encode()).hexdigest()[:_HASH_LENGTH]


def build_arguments(target: ImageTarget, name: str, arguments: BuildArguments, context: Path) -> list[str]:
    """Arguments of `buildah`. Times are 0, so that the same inputs give the same digest."""
    mounted = "/run/certificates-of-the-builder.crt"
    given = {"BASE": arguments.base, "VERSION": arguments.version, "SOURCE_DATE_EPOCH": "0"}
    if arguments.certificates:
        given["PIP_CERT"] = mounted
    return [
        *("build", "--isolation=chroot", "--layers", "--pull-never", "--format=oci", "--timestamp=0"),
        *(f"--build-arg={key}={value}" for key, value in given.items()),
        *(["--build-arg=PIP_INDEX_URL"] if arguments.own_index else []),  # buildah reads the value from its environment
        *([f"--volume={arguments.certificates}:{mounted}:ro"] if arguments.certificates else []),
        *(f"--target={target.stage}", f"--tag={name}", f"--file={context / CONTAINERFILE}", str(context)),
    ]


def foreign_mounts(mountinfo: str, needed: Iterable[str]) -> list[str]:
    """Mount points in /proc/self/mountinfo, outermost first, that hold none of the needed paths and nothing of the system's."""
    points = [
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in mountinfo.splitlines()
    ]
    kept = [*needed, "/"]
    return [
        point
        for point in dict.fromkeys(points)
        if not any(_is_within(path, point) for path in kept) and not any(_is_within(point, path) for path in _SYSTEM)
    ]


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def progress(line: str) -> tuple[str, float] | None:
    """The instruction that buildah begins, shortened, and how far the build is; None if the line says something else."""
    match = _STEP.match(line)
    if match is None:
        return None
    stage, stages, step, steps, instruction = match.groups()
    return " ".join(instruction.split())[:60], (int(stage) - 1 + (int(step) - 1) / int(steps)) / int(stages)


def failure(lines: Sequence[str], most: int = 3) -> str:
    """The end of a build's output, in one line."""
    return " ".join(line.strip() for line in list(lines)[-most:] if line.strip())


def is_outdated(lines: Iterable[str]) -> bool:
    """Whether a build failed because apt's lists are older than the mirror."""
    return any(re.search(r"\b404\s+Not Found", line) for line in lines)


def unused(archives: Iterable[tuple[float, Path]], keep: int) -> list[Path]:
    """All but the archives used last, each with the time of its last use."""
    return [path for _, path in sorted(archives, key=lambda archive: archive[0], reverse=True)[keep:]]
