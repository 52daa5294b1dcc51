"""Slots: a machine-wide number per running lab, from which its ports and addresses follow.

A claim is a symlink to the lab's directory, made atomically; one that dangles belongs to a lab that is gone. Ports lie
below the kernel's ephemeral range, so no outgoing connection takes one while its owner restarts.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zonewise.errors import ZonewiseError

FIRST_PORT = 20000
PORTS_PER_SLOT = 40
SLOTS = 64  # as many as there are address ranges; see addresses
_PORTS_IN_USE = 9  # those checked before a slot is taken


class SlotError(ZonewiseError):
    pass


def port(slot: int, index: int) -> int:
    if not (0 <= slot < SLOTS and 0 <= index < PORTS_PER_SLOT):
        raise ValueError(f"no port {index} in slot {slot}: there are {SLOTS} slots of {PORTS_PER_SLOT} ports")
    return FIRST_PORT + slot * PORTS_PER_SLOT + index


def claim(directory: Path, registry: Path | None = None) -> int:
    """The slot of this existing directory: the one it holds already, or the first free one whose ports are unused."""
    with _locked(registry or default_registry()) as claims:
        mine = _held(claims, directory)
        if mine is not None:
            return mine
        for slot in range(SLOTS):
            if _take(claims / str(slot), directory) and _ports_free(slot):
                return slot
            _drop(claims / str(slot), directory)
    raise SlotError(f"all {SLOTS} lab slots of {claims} are taken: stop a lab with `zonewise lab down --name NAME`")


def held(directory: Path, registry: Path | None = None) -> int | None:
    """The slot that this directory holds, if any."""
    with _locked(registry or default_registry()) as claims:
        return _held(claims, directory)


def _held(claims: Path, directory: Path) -> int | None:
    return next((int(link.name) for link in claims.iterdir() if _target(link) == directory), None)


def release(directory: Path, registry: Path | None = None) -> None:
    with _locked(registry or default_registry()) as claims:
        for link in claims.iterdir():
            _drop(link, directory)


def owners(registry: Path | None = None) -> list[Path]:
    """The directories of all labs that hold a slot, running or not."""
    with _locked(registry or default_registry()) as claims:
        return [target for link in claims.iterdir() if (target := _target(link)) is not None]


def default_registry() -> Path:
    """The same for all users and whatever their TMPDIR: addresses, ports and names are the machine's."""
    return Path("/tmp", "zonewise-slots")  # noqa: S108 - every user may write here, and remove only what is theirs


@contextmanager
def _locked(registry: Path) -> Iterator[Path]:
    try:
        registry.mkdir(mode=0o777)
        registry.chmod(0o1777)  # shared by all users like /tmp: addresses and ports are the machine's
    except FileExistsError:
        pass
    descriptor = os.open(registry, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield registry
    finally:
        os.close(descriptor)


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:
        return None


def _take(link: Path, directory: Path) -> bool:
    owner = _target(link)
    if owner is not None and not os.path.lexists(owner):
        _drop(link, owner)
    try:
        link.symlink_to(directory)
    except FileExistsError:
        return False
    return True


def _drop(link: Path, owner: Path) -> None:
    if _target(link) == owner:
        try:
            link.unlink()
        except PermissionError:
            return  # another user's: theirs to remove


def _ports_free(slot: int) -> bool:
    return all(_port_free(port(slot, index)) for index in range(_PORTS_IN_USE))


def _port_free(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True
