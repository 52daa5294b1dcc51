"""What the files of a lab's Ceph take from the installed release."""

from __future__ import annotations

import pytest

from zonewise.errors import ZonewiseError
from zonewise.lab.decide import ceph_conf


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("ceph version 16.2.15 (618f440892089921c3e944a991122ddc44e60516) pacific (stable)\n", "pacific"),
        (
            "ceph version 20.2.4 (69bdd2f4ae5b4a4bbe0d8e3a8f0b3cbb0bb2ecbe) tentacle (stable - RelWithDebInfo)\n",
            "tentacle",
        ),
    ],
)
def test_release_is_read_from_the_version(version: str, release: str) -> None:
    assert ceph_conf.release(version) == release


def test_version_without_a_release_is_an_error() -> None:
    with pytest.raises(ZonewiseError, match="names no release: 'ceph version Development'"):
        ceph_conf.release("ceph version Development\n")
