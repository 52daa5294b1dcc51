"""What labs leave on a machine outside their directories: found by the names of labs, whatever their records say.

Other labs come and go meanwhile. So only what bears given names is listed, or what belongs to no lab at all: a lab
claims its slot before it makes anything, and releases it last.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from zonewise.lab import slots
from zonewise.lab.decide.addresses import link_of, namespace_of
from zonewise.lab.decide.cgroup_hierarchies import lab_cgroup
from zonewise.lab.decide.kubelet_config import KERNEL_SETTINGS
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups, loop_devices

_SETTINGS = {**KERNEL_SETTINGS, "net/ipv4/ip_forward": 1, "net/ipv6/conf/all/forwarding": 1}
"""With the values that kubelets and routers write."""
_NAMESPACES = Path("/run/netns")


def settings() -> dict[str, str]:
    """Of the machine's kernel, those that nodes or routers need with other values."""
    files = {name: Path("/proc/sys", name) for name in _SETTINGS}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


def written_by_labs(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Settings that have changed to what a lab writes; a machine's other programs write other values, too."""
    return {name: value for name, value in after.items() if before.get(name) != value == str(_SETTINGS[name])}


def bears(text: str, labs: Iterable[str]) -> bool:
    """Whether a path or a command line holds the name of one of the labs, as its namespaces and cgroups have it."""
    names = "|".join(re.escape(name) for lab in labs for name in (namespace_of(lab), lab_cgroup(lab)))
    return bool(names) and re.search(rf"(?<![\w-])({names})(?![\w-])", text) is not None


def processes(labs: Iterable[str]) -> Iterator[int]:
    """In cgroups of the labs, or in their network namespaces; but for zombies, which the machine's init reaps."""
    labs = list(labs)
    yield from namespaces.pids_in([namespace for lab in labs for namespace in namespaces.of_lab(lab)])
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        if bears(text_of(file), labs) and text_of(file.with_name("cmdline")):
            yield int(file.parent.name)


def mounts(labs: Iterable[str], state: Path) -> list[str]:
    """Of the labs or below the directory, in any mount namespace of a process that can be seen."""
    labs = list(labs)
    lines = {line for path in Path("/proc").glob("[0-9]*/mountinfo") for line in text_of(path).splitlines()}
    return sorted(line for line in lines if str(state) in line or bears(line, labs))


def dead_loop_devices() -> set[str]:
    """Of any lab: its file has no path any more."""
    return set(loop_devices.without_path(Path("/sys/block")))


def orphans(labs: Collection[str] | None = None) -> set[str]:
    """Network namespaces, cgroups and links of labs that hold no slot; of these labs only, if given, and then no links."""
    before = _holders()
    made = set(_made())
    holders = before | _holders()  # labs start and end meanwhile
    return {what for what, owner in made if owner not in holders and (labs is None or owner in labs)}


def _holders() -> set[str]:
    """Names of labs that hold a slot, and of their links."""
    names = {owner.name for owner in slots.owners()}
    return names | {link_of(int(link.name)) for link in slots.default_registry().iterdir()}


def _made() -> Iterator[tuple[str, str]]:
    """Each with the lab's name or, of links, their own."""
    prefix = namespace_of("")
    for entry in _NAMESPACES.glob(f"{prefix}*"):
        yield str(entry), entry.name.removeprefix(prefix).partition(".")[0]
    for hierarchy in cgroups.known():
        for cgroup in hierarchy.path.glob(f"{lab_cgroup('')}*/"):
            yield str(cgroup), cgroup.name.removeprefix(lab_cgroup(""))
    links = {link_of(slot) for slot in range(slots.SLOTS)}
    yield from ((link, link) for _, link in socket.if_nameindex() if link in links)


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""
