"""Whose the nodes of a name are, asked before anything of a lab without a record is ended.

Network namespaces and cgroups bear a lab's name, which is used once on a machine. Directories with records can be several:
of other users, and below other state directories. A node that runs tells its lab's directory by the command line of its
first process.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from zonewise.errors import ZonewiseError
from zonewise.lab import slots, state
from zonewise.lab.decide.cgroup_hierarchies import lab_cgroup
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups

_NODE_INIT: Final = "zonewise.lab.nodes.node_init"
_INIT_CONFIG: Final = ("nodes", "init.json")  # LAB/nodes/NODE/init.json


class NameTakenError(ZonewiseError):
    pass


def require_free_name(name: str, directory: Path) -> None:
    """Raises NameTakenError if another lab has the name, from whatever state directory."""
    for owner in (*_namesakes(name, directory), *sorted(running(name) - {_real(directory)})):
        raise NameTakenError(f"a lab {name!r} runs already, from {owner.parent}: choose another name with --name")


def owns_nodes(name: str, directory: Path) -> bool:
    """Whether the nodes of this name may be ended for the lab of this directory, which has no record."""
    if os.geteuid() != 0:
        return False  # nodes need root
    others = [owner for owner in _namesakes(name, directory) if state.may_have_nodes(owner)]
    return judge(_real(directory), _traces(name), running(name), others)


def judge(directory: Path, traces: Collection[str], owners: Collection[Path], others: Collection[Path]) -> bool:
    """`owners` have nodes that run; `others` are further labs of the name, which may have some. Raises NameTakenError."""
    foreign = [owner for owner in owners if owner != directory]
    if directory in owners and foreign:
        raise NameTakenError(_undecided(traces, foreign))
    if directory in owners:
        return True
    if not traces or foreign:
        return False
    if others:
        raise NameTakenError(_undecided(traces, others))
    return True


def running(name: str, proc: Path = Path("/proc")) -> set[Path]:
    """Directories of the labs of this name of which a node runs, without symbolic links."""
    lines = (_command_line(entry) for entry in proc.glob("[0-9]*"))
    owners = {_real(owner) for line in lines if (owner := _owner(line)) is not None}
    return {owner for owner in owners if owner.name == name}


def _undecided(traces: Collection[str], others: Collection[Path]) -> str:
    return (
        f"{', '.join(sorted(traces))} may belong to {' or '.join(map(str, others))}: first end that lab "
        "(`zonewise lab down` with its ZONEWISE_STATE), or delete its directory if it is no longer used"
    )


def _namesakes(name: str, directory: Path) -> list[Path]:
    return [owner for owner in slots.owners() if owner.name == name and owner != directory and _exists(owner)]


def _exists(directory: Path) -> bool:
    """True also for what only its owner may look at."""
    try:
        return directory.exists()
    except PermissionError:
        return True


def _traces(name: str) -> list[str]:
    """What nodes of this name have left on the machine, running or not."""
    roots = (hierarchy.path / lab_cgroup(name) for hierarchy in cgroups.known())
    return [*map(str, map(namespaces.path, namespaces.of_lab(name))), *(str(root) for root in roots if root.exists())]


def _command_line(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="surrogateescape").rstrip("\0").split("\0")
    except OSError:  # it has ended
        return []


def _owner(command: list[str]) -> Path | None:
    """The lab's directory, from the command line of a node's first process or of what starts it."""
    config = Path(command[-1]) if _NODE_INIT in command else Path()
    if len(config.parts) > 4 and (config.parts[-3], config.name) == _INIT_CONFIG:
        return config.parents[2]
    return None


def _real(path: Path) -> Path:
    """Also where a part of it may not be read."""
    return Path(os.path.realpath(path))
