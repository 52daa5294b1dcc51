"""What is on a device is looked at before a file system is made there: what can't be read, or not be named, is not blank."""

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


def test_zeros_are_blank(file: Path) -> None:
    with file.open("r+b") as image:
        image.truncate(SIZE)
    assert filesystems.detect(device(file)) == ""


@pytest.mark.parametrize("where", [0, SIZE - 512])
def test_what_nobody_can_name_is_not(file: Path, where: int) -> None:
    with file.open("r+b") as image:
        image.truncate(SIZE)
        image.seek(where)
        image.write(b"somebody's data")
    assert filesystems.detect(device(file)) == "unknown"


def test_what_can_not_be_read_is_not(file: Path) -> None:
    """blkid says of a device whose every read fails what it says of a blank one."""
    with file.open("r+b") as image:
        image.truncate(SIZE)
    subprocess.run(["mkfs.ext4", "-q", "-F", file], check=True)
    lost = device(file)
    with file.open("r+b") as image:
        image.truncate(0)
    with pytest.raises(OSError, match="Input/output"):
        filesystems.detect(lost)
