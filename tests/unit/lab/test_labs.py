"""Options of a lab that do not go together are refused before anything is built or started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zonewise.errors import UsageError
from zonewise.lab import labs
from zonewise.lab.build.buildah import ImageBuildError
from zonewise.lab.labs import BuiltImages
from zonewise.lab.state import Lab, LabImage, LabOptions

ZONES = ("zone-a",)
REFUSED = {
    "Ceph without zones": (LabOptions(ceph=True), "--zones"),
    "kwok nodes without zones": (LabOptions(kwok_nodes=1), "--zones"),
    "kube-proxy without nodes": (LabOptions(zones=ZONES, kube_proxy=True), "kube-proxy runs on"),
    "policies without nodes": (LabOptions(zones=ZONES, network_policies=True), "policies are enforced on nodes"),
    "a demo without kube-proxy": (LabOptions(zones=ZONES, nodes_per_zone=1, demo=True), "--kube-proxy"),
    "Zonewise without nodes": (LabOptions(zones=ZONES, zonewise=True), "Zonewise runs in pods"),
}


@pytest.mark.parametrize(("options", "why"), REFUSED.values(), ids=REFUSED)
def test_refused_options_are_named(options: LabOptions, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        labs.check("lab", options)


def test_nodes_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="nodes need root"):
        labs.check("lab", LabOptions(zones=ZONES, nodes_per_zone=1))
    labs.check("lab", LabOptions(zones=ZONES, kwok_nodes=3))


def test_lock_of_a_down_that_was_killed_at_its_end_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_STATE", str(tmp_path / "state"))
    (tmp_path / "state/labs").mkdir(parents=True)
    (tmp_path / "state/labs/ended.lock").write_text("1234")
    assert not labs.down("ended", lambda _step: None)
    assert not (tmp_path / "state").exists()
    assert not labs.down("ended", lambda _step: None)
    assert not (tmp_path / "state").exists()


def test_running_lab_keeps_its_images_when_new_ones_cannot_be_built(tmp_path: Path) -> None:
    options = LabOptions(zones=ZONES, nodes_per_zone=1, kube_proxy=True, demo=True)
    image = LabImage("localhost/zonewise:1", tmp_path / "image.tar")
    lab = Lab(name="lab", directory=tmp_path, slot=0, binaries=tmp_path, options=options, image=image)
    steps: list[str] = []
    images = BuiltImages(error=ImageBuildError("no such package"))
    assert labs._with_images_of_now(lab, images, steps.append) == lab
    assert steps == ["no new images, the lab keeps those it has: no such package"]
    assert not list(tmp_path.iterdir())
