"""Container images, built from these sources: what is in them, and that their programs run on a node."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import zonewise
from support.lab.kubectl import Kubectl
from support.lab.pods import Json, Pods
from zonewise.lab.build import container_images
from zonewise.lab.build.container_images import ImageArchive, ImageTarget
from zonewise.lab.decide import image_plan
from zonewise.lab.nodes import nodes
from zonewise.lab.progress import ProgressReporter
from zonewise.lab.state import Lab

pytestmark = pytest.mark.timeout(1800)  # the first test builds, unless the images are in the cache

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
NODE = "zone-a-1"
GOALS = {ImageTarget.PROGRAMS: 150_000_000, ImageTarget.CSI: 400_000_000}
EXTRAS = {"distributed", "numba", "numpy"}
"""Of the simulator, which is no part of an image."""
BINDINGS = {"cephfs", "rados", "rbd"}
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
IMPORT_ALL = """
import importlib, os, pkgutil, zonewise
absent, count = set(), 0
for module in pkgutil.walk_packages(zonewise.__path__, "zonewise."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as error:
            absent.add(error.name)
print(os.getuid(), os.getgid(), count > 300, *sorted(absent))
"""
CALLED = (
    "blkid -V; blockdev --version; ceph-fuse --version; e2fsck -V; losetup --version; mkfs.ext4 -V; mkfs.xfs -V; modprobe --version; "
    "mount --version; qemu-storage-daemon --version; rbd --version; rbd-nbd --version; setfattr --version; umount --version; xfs_growfs -V"
)
"""Programs that the storage driver calls."""


@pytest.fixture(scope="module")
def images() -> dict[ImageTarget, ImageArchive]:
    reporter = ProgressReporter(sys.stderr)
    return {target: container_images.ensure(target, reporter) for target in ImageTarget}


@pytest.fixture(scope="module")
def loaded(small_lab: Lab, images: dict[ImageTarget, ImageArchive]) -> dict[ImageTarget, str]:
    """Names of the images, on every node."""
    for image in images.values():
        assert nodes.load_image(small_lab, image.path) == [image.name]
    return {target: image.name for target, image in images.items()}


async def output_of(pods: Pods, image: str, container: Json) -> str:
    """What a confined container prints before it ends with success."""
    name = "once"
    await pods.create(name, NODE, {"image": image, "securityContext": CONFINED, **container}, restartPolicy="Never")
    pod = await pods.when(name, lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"}, "has ended")
    printed = Kubectl(pods.lab, pods.namespace).run("logs", name)
    assert pod["status"]["phase"] == "Succeeded", printed
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    return printed


async def test_entry_point_of_the_image_is_zonewise(small_pods: Pods, loaded: dict[ImageTarget, str]) -> None:
    printed = await output_of(small_pods, loaded[ImageTarget.PROGRAMS], {"args": ["--version"]})
    assert printed == f"zonewise {zonewise.__version__}\n"


@pytest.mark.parametrize(("target", "absent"), [(ImageTarget.PROGRAMS, BINDINGS | EXTRAS), (ImageTarget.CSI, EXTRAS)])
async def test_every_module_can_be_imported_as_user_65532(
    small_pods: Pods, loaded: dict[ImageTarget, str], target: ImageTarget, absent: set[str]
) -> None:
    printed = await output_of(small_pods, loaded[target], {"command": ["python", "-c", IMPORT_ALL]})
    uid, gid, complete, *missing = printed.split()
    assert (uid, gid, complete) == ("65532", "65532", "True")
    assert set(missing) <= absent


async def test_image_of_the_driver_has_the_programs_it_calls(small_pods: Pods, loaded: dict[ImageTarget, str]) -> None:
    checks = [f"{command} >/dev/null 2>&1 || echo no {command}" for command in CALLED.split("; ")]
    opening = "qemu-storage-daemon --blockdev driver=rbd,node-name=a,pool=b,image=c,conf=/none 2>&1"
    script = "; ".join([*checks, f"{opening} | {{ read line; echo $line; }}", "cat /proc/self/comm"])
    printed = await output_of(small_pods, loaded[ImageTarget.CSI], {"command": ["sh", "-c", script]})
    refused, last = printed.splitlines()
    assert refused.endswith("error reading conf file /none: No such file or directory"), "the driver for RBD is there"
    assert last == "cat"


async def test_bindings_of_ceph_and_grpc_work_in_the_image(small_pods: Pods, loaded: dict[ImageTarget, str]) -> None:
    script = "import cephfs, grpc, rados, rbd; rados.Rados(rados_id='x').shutdown(); print(rbd.RBD().version()[0], grpc.server)"
    printed = await output_of(small_pods, loaded[ImageTarget.CSI], {"command": ["python", "-c", script]})
    assert re.match(r"1 <function server", printed)


def read(archive: Path) -> tuple[Json, dict[str, tarfile.TarInfo], dict[str, bytes]]:
    """Configuration, files, and the content of what describes the image."""
    files, content = {}, {}
    with tarfile.open(archive) as outer:

        def document(name: str) -> Any:
            file = outer.extractfile(name)
            assert file is not None
            return json.load(file)

        (manifest,) = document("manifest.json")
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                for entry in inner:
                    files[entry.name.rstrip("/")] = entry
                    if entry.name == "usr/share/sbom.cdx.json" or "/dpkg/status.d/" in entry.name:
                        file = inner.extractfile(entry)
                        content[entry.name] = file.read() if file else b""
        return document(manifest["Config"]), files, content


@pytest.mark.parametrize("target", ImageTarget)
def test_image_is_small_unprivileged_and_lists_its_packages(
    images: dict[ImageTarget, ImageArchive], target: ImageTarget
) -> None:
    configuration, files, content = read(images[target].path)
    assert sum(entry.size for entry in files.values()) < GOALS[target]
    assert (configuration["config"]["User"], configuration["config"]["Entrypoint"]) == ("65532", ["zonewise"])
    labels = configuration["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == zonewise.__version__
    assert labels["org.opencontainers.image.title"] == target.value
    assert not [name for name, entry in files.items() if entry.mode & 0o6000], "set-uid programs"
    assert {entry.mtime for entry in files.values()} == {0}
    assert not {"usr/bin/apt-get", "usr/bin/dpkg", "usr/bin/perl", "opt/zonewise/bin/pip"} & files.keys()
    bill = json.loads(content.pop("usr/share/sbom.cdx.json"))
    debian = {part["name"] for part in bill["components"] if part["purl"].startswith("pkg:deb/")}
    assert debian == {name.rpartition("/")[2] for name in content}
    installed = {
        match[1] for name in files if (match := re.search(r"site-packages/([^/]+)\.dist-info/METADATA$", name))
    }
    assert {_normal(name) for name in installed - {f"zonewise-{zonewise.__version__}"}} == {
        _normal(f"{part['name']}-{part['version']}")
        for part in bill["components"]
        if part["purl"].startswith("pkg:pypi/")
    }


@pytest.mark.skipif(not LONG, reason="takes minutes: `make test-faults` runs it")
def test_image_built_twice_has_the_same_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all of it, in a cache of its own: Debian base, Python packages, layers and archive."""
    sources = tmp_path / "sources"
    package, compiled = image_plan.PACKAGE, shutil.ignore_patterns("__pycache__")
    shutil.copytree(container_images.SOURCES / package, sources / package, ignore=compiled)
    for name in image_plan.FILES:
        (sources / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(container_images.SOURCES / name, sources / name)
    names, digests = set(), set()
    for number in range(2):
        cache = tmp_path / str(number)
        monkeypatch.setenv("ZONEWISE_CACHE", str(cache))
        image = container_images.ensure(ImageTarget.PROGRAMS, ProgressReporter(sys.stderr), sources=sources)
        assert image.path.is_relative_to(cache)
        names.add(image.name)
        with image.path.open("rb") as archive:
            digests.add(hashlib.file_digest(archive, "sha256").hexdigest())
        shutil.rmtree(cache)  # a gigabyte
    assert len(names) == 1, f"the Debian bases differ, as when the mirror was updated meanwhile: {names}"
    assert len(digests) == 1, names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
