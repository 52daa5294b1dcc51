"""The tour that `lab up` prints: complete command lines, for this lab's name and what runs in it."""

from pathlib import Path

import pytest

from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.demo import tour
from zonewise.lab.state import DEFAULT_NAME, Lab, LabOptions


def lab(name: str = DEFAULT_NAME, *, demo: bool = False, zonewise: bool = False, ceph: bool = False) -> Lab:
    options = LabOptions(zones=zone_names(3), nodes_per_zone=2, demo=demo, zonewise=zonewise, ceph=ceph)
    return Lab(name=name, directory=Path("/lab"), slot=0, binaries=Path("/bin"), options=options)


@pytest.mark.parametrize(
    ("options", "stops"),
    [("", 1), ("demo", 4), ("demo zonewise", 5), ("demo zonewise ceph", 6)],
)
def test_tour_shows_what_the_lab_has(options: str, stops: int) -> None:
    shown_lab = lab(demo="demo" in options, zonewise="zonewise" in options, ceph="ceph" in options)
    assert len(tour.stops(shown_lab)) == stops
    text = tour.text(shown_lab, terminal=False)
    assert ("dashboard" in text) == shown_lab.options.zonewise
    assert ("csi takeover" in text) == shown_lab.options.ceph
    assert "\x1b" not in text


def test_commands_name_a_lab_other_than_the_default() -> None:
    named = [line for stop in tour.stops(lab("big", demo=True, zonewise=True, ceph=True)) for line in stop.commands]
    assert all("--name big" in line for line in named if "zonewise lab" in line)
    assert "--name" not in tour.text(lab(demo=True, zonewise=True, ceph=True), terminal=False)
