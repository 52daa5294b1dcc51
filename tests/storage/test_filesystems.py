"""Detection of file systems: a device that is unreadable or has unknown content is not blank."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from zonewise.ceph.node import filesystems
from zonewise.ceph.node.mappers import loop_devices

SIZE = 32 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "image"
    path.touch()
    yield path
    loop_devices.detach(path)


def device(file: Path) -> str:
    return loop_devices.attach(file, read_only=True)


def test_device_of_zeros_is_blank(file: Path) -> None:
    with file.open("r+b") as image:
        image.truncate(SIZE)
    assert filesystems.detect(device(file)) == ""


@pytest.mark.parametrize("offset", [0, SIZE - 512])
def test_unknown_content_is_not_blank(file: Path, offset: int) -> None:
    with file.open("r+b") as image:
        image.truncate(SIZE)
        image.seek(offset)
        image.write(b"unknown data")
    assert filesystems.detect(device(file)) == "unknown"


def test_unreadable_device_is_not_blank(file: Path) -> None:
    """blkid reports the same for a device with read errors as for a blank one."""
    with file.open("r+b") as image:
        image.truncate(SIZE)
    subprocess.run(["mkfs.ext4", "-q", "-F", file], check=True)
    lost = device(file)
    with file.open("r+b") as image:
        image.truncate(0)
    with pytest.raises(OSError, match="Input/output"):
        filesystems.detect(lost)
