"""`zonewise plan` on the dump of a large cluster, as `make bench-plan` measures it; here only what does not depend on who
else is on the machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.plan import large
from bench.plan.__main__ import GOAL_MIB, LARGE, plan

from zonewise import dump
from zonewise.objects import Node, Pod, Service
from zonewise.objects.discovery import EndpointSlice

VIEWS = {"Node": Node, "Service": Service, "Pod": Pod, "EndpointSlice": EndpointSlice}


def test_a_plan_of_the_largest_cluster_stays_under_a_gibibyte() -> None:
    """From pods alone, which takes most."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "dump.yaml"
        large.write(file, LARGE, slices=False)
        done = plan(file)
    print(f"{done.wall_seconds:.1f} s, {done.cpu_seconds:.1f} CPU s, {done.peak_mib:.0f} MiB")
    assert done.said.startswith("5000 client nodes by zone: eu-1a 834,")
    assert "\n2000 Services: " in done.said
    assert done.peak_mib < GOAL_MIB


def test_each_form_of_the_dump_says_the_same(tmp_path: Path) -> None:
    size, said, objects = large.Size(nodes=60, services=20, pods=200), [], []
    for form in ("yaml", "json"):
        for slices in (True, False):
            file = tmp_path / "dump"
            large.write(file, size, slices=slices, form=form)
            said.append(plan(file).said)
            found = dump.read(file.read_bytes(), "dump", VIEWS)
            objects.append({kind: len(each) for kind, each in found.items()})
    assert len(set(said)) == 1
    assert objects == [{"Node": 60, "Service": 20, "Pod": 200, "EndpointSlice": 20 * slices} for slices in (1, 0)] * 2
