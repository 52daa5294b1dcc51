"""`zonewise plan` on the dump of a large cluster: its memory, which does not depend on the load of the machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.plan import large
from bench.plan.__main__ import GOAL_MIB, LARGE, plan

from zonewise import dump
from zonewise.objects import Node, Pod, Service
from zonewise.objects.discovery import EndpointSlice

VIEWS = {"Node": Node, "Service": Service, "Pod": Pod, "EndpointSlice": EndpointSlice}


def test_a_plan_of_a_large_cluster_stays_under_a_gibibyte() -> None:
    """From pods only, the most expensive form."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "dump.yaml"
        large.write(file, LARGE, slices=False)
        run = plan(file)
    print(f"{run.wall_seconds:.1f} s, {run.cpu_seconds:.1f} CPU s, {run.peak_mib:.0f} MiB")
    assert run.output.startswith("5000 client nodes by zone: eu-1a 834,")
    assert "\n2000 Services: " in run.output
    assert run.peak_mib < GOAL_MIB


def test_yaml_and_json_dumps_give_the_same_plan(tmp_path: Path) -> None:
    size, outputs, objects = large.Size(nodes=60, services=20, pods=200), [], []
    for form in ("yaml", "json"):
        for slices in (True, False):
            file = tmp_path / "dump"
            large.write(file, size, slices=slices, form=form)
            outputs.append(plan(file).output)
            by_kind = dump.read(file.read_bytes(), "dump", VIEWS)
            objects.append({kind: len(items) for kind, items in by_kind.items()})
    assert len(set(outputs)) == 1
    assert objects == [{"Node": 60, "Service": 20, "Pod": 200, "EndpointSlice": 20 * slices} for slices in (1, 0)] * 2
