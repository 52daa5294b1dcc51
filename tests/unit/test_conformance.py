"""Kubernetes' end-to-end tests: tiers, the suite's report, the images' recipes, tables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.conformance import (
    images,
    junit,
    lab_run,
    programs,
    recipes,
    report,
    setups,
    sidecars,
    storage,
    suite_run,
    tiers,
)
from support.conformance.junit import SpecOutcome, SpecResult
from support.conformance.recipes import RecipeInputs
from support.conformance.report import SetupResult
from support.conformance.setups import Setup
from support.conformance.storage import StorageKind
from zonewise.errors import UsageError, ZonewiseError
from zonewise.install import components
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues
from zonewise.lab import labs
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.decide.oci_image import ImageFiles, blob

DAY = "2026-01-02"
REPORT = """\
<testsuites tests="6"><testsuite name="Kubernetes e2e suite">
  <testcase name="[SynchronizedBeforeSuite]" status="passed" time="2.5"></testcase>
  <testcase name="[It] [sig-network] DNS should answer [Conformance]" status="passed" time="5.25">
    <system-err>STEP: looking up a name</system-err></testcase>
  <testcase name="[It] [sig-network] Services should serve" status="failed" time="61">
    <failure message="" type="failed">[FAILED] at services.go:1\n\n  no endpoint answered\nmore</failure></testcase>
  <testcase name="[It] [sig-network] Netpol" status="panicked" time="1">
    <error message="index out of range" type="panicked">stack</error></testcase>
  <testcase name="[It] [sig-network] Load balancer" status="skipped" time="0.5">
    <skipped message="skipped - Only supported for providers [gce]"></skipped></testcase>
  <testcase name="[It] [sig-storage] not selected" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  <testcase name="[ReportAfterSuite]" status="passed" time="0.1"></testcase>
</testsuite></testsuites>
"""
SELECTED = {
    "[sig-network] DNS should provide DNS for the cluster [Conformance]": {"conformance", "full"},
    "[sig-network] Services should function for service endpoints using hostNetwork": {"wide"},
    "[sig-network] DNS configMap nameserver Change stubDomain [Slow] [Serial]": set(),
    "[sig-network] DNS configMap nameserver [Feature:Networking-IPv6] forwards": set(),
    "[sig-apps] DisruptionController should update PodDisruptionBudget status [Conformance]": {
        "conformance",
        "full",
        "apps",
    },
    "[sig-network] Netpol API should support creating NetworkPolicy API operations": {"wide"},
    "[sig-network] Netpol NetworkPolicy between server and client should deny egress [Feature:NetworkPolicy]": {
        "policies"
    },
    "[sig-network] Netpol [Feature:SCTPConnectivity] NetworkPolicy between server and client using SCTP [Feature:NetworkPolicy]": set(),
    "[sig-apps] StatefulSet Basic StatefulSet functionality should perform rolling updates": {"apps"},
    "[sig-apps] Daemon set [Serial] should run and stop simple daemon [Conformance]": {"full", "apps"},
    "[sig-apps] Job should delete a job [Conformance]": {"full"},
    "[sig-storage] ConfigMap should be consumable from pods in volume [Conformance]": {"full"},
    "[sig-network] [Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to pod ips": {"wide"},
    "[sig-network] LoadBalancers [Feature:LoadBalancer] [Slow] should change the type": set(),
    "[sig-network] HostPort [Disruptive] restarts its node [Conformance]": set(),
    "External Storage [Driver: ceph.zonewise.dev] [Testpattern: Dynamic PV (block volmode)] volumes should store data": {
        "storage"
    },
    "External Storage [Driver: ceph.zonewise.dev] disruptive [Disruptive] [LinuxOnly] should keep a mount": set(),
}


def is_selected(tier: tiers.Tier, name: str) -> bool:
    """As ginkgo does: focus and skip are regular expressions over the whole name; features are labels, which stand in it."""
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in tiers.ginkgo_flags(tier))
    features = set(re.findall(r"\[Feature:([\w-]+)\]", name))
    allowed = set(re.findall(r"\w+", flags["label-filter"].partition("{")[2]))
    return bool(re.search(flags["focus"], name)) and not re.search(flags["skip"], name) and features <= allowed


@pytest.mark.parametrize(("name", "expected"), SELECTED.items())
def test_tiers_select_specs_by_name(name: str, expected: set[str]) -> None:
    assert {tier.name for tier in tiers.TIERS.values() if is_selected(tier, name)} == expected


def test_unknown_tier_or_set_up_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="conformance, full, wide, policies, apps"):
        tiers.choose("confromance")
    with pytest.raises(UsageError, match="stock, ours, overlay"):
        setups.choose("rbd", tiers.choose("wide").setups)
    assert setups.choose("", tiers.choose("storage").setups) == [Setup.RBD, Setup.CEPHFS]


def test_set_ups_differ_in_what_the_lab_starts() -> None:
    stock, ours, overlay, rbd, cephfs = (setups.lab_options(setup, 2) for setup in Setup)
    assert (stock, stock.kube_proxy, stock.controllers, stock.nodes_per_zone) == (overlay, True, "*", 2)
    assert (stock.ceph, rbd.ceph, rbd) == (False, True, cephfs)
    assert (ours.kube_proxy, ours.controllers) == (False, "*,-endpointslice-controller")
    assert [setup for setup in Setup if setups.needs_zonewise(setup)] == [Setup.OURS, Setup.OVERLAY]


def test_report_lists_specs_that_ran_and_why_others_did_not() -> None:
    assert junit.read(REPORT) == [
        SpecResult("[sig-network] DNS should answer [Conformance]", SpecOutcome.PASSED, 5.25),
        SpecResult("[sig-network] Services should serve", SpecOutcome.FAILED, 61, "no endpoint answered"),
        SpecResult("[sig-network] Netpol", SpecOutcome.FAILED, 1, "index out of range"),
        SpecResult("[sig-network] Load balancer", SpecOutcome.SKIPPED, 0.5, "Only supported for providers [gce]"),
    ]


def test_failed_set_up_of_the_suite_counts_as_a_failure() -> None:
    broken = '<testcase name="[SynchronizedBeforeSuite]" time="9"><failure message="no node is ready"/></testcase>'
    [result] = junit.read(f"<testsuites>{broken}</testsuites>")
    assert (result.name, result.outcome) == ("[SynchronizedBeforeSuite]", SpecOutcome.FAILED)


def results() -> list[SetupResult]:
    specs = junit.read(REPORT)
    return [SetupResult("stock", specs, 99.6, DAY), SetupResult("ours", [specs[0], specs[1]], 61, DAY)]


def test_table_has_a_row_per_set_up_and_failures_name_where() -> None:
    assert report.table(report.rows(results())).splitlines()[2:] == [
        f"| stock | 4 | 1 | 2 | 1 | 100 | {DAY} |",
        f"| ours | 2 | 1 | 1 | 0 | 61 | {DAY} |",
    ]
    assert report.failures(report.rows(results())).splitlines() == [
        "- stock: `[sig-network] Netpol`",
        "- stock, ours: `[sig-network] Services should serve`",
    ]


def test_results_survive_the_file_and_a_later_run_replaces_its_rows() -> None:
    saved = json.loads(json.dumps(report.document(tiers.choose("wide"), results(), {"kubernetes": "v1"})))
    read = report.from_document(saved)
    assert [(result.setup, result.specs, result.seconds) for result in read] == [
        (result.setup, result.specs, result.seconds) for result in results()
    ]
    again = SetupResult("stock", results()[0].specs[:1], 50, DAY)
    merged = report.merged(read, [again], list(Setup))
    assert [(result.setup, len(result.specs)) for result in merged] == [("stock", 1), ("ours", 2)]


def test_section_of_a_tier_replaces_the_last_one_between_its_marks() -> None:
    tier, page = tiers.choose("apps"), "# Page\n\n<!-- e2e:apps -->\nold\n<!-- /e2e:apps -->\n\nExplained.\n"
    text = report.section(tier, report.rows(results()), {"kubernetes": "Kubernetes v1.2.3", "machine": "2 cores"})
    replaced = report.replace_section(page, tier.name, text)
    assert replaced.startswith("# Page\n\n<!-- e2e:apps -->\n`make e2e TIER=apps`: ")
    assert replaced.endswith("`\n<!-- /e2e:apps -->\n\nExplained.\n")
    assert ("old" in replaced, "Kubernetes v1.2.3, 2 cores." in replaced) == (False, True)
    assert report.replace_section("# Page\n", "wide", "new") == "# Page\n\n<!-- e2e:wide -->\nnew\n<!-- /e2e:wide -->\n"


def test_page_keeps_rows_of_set_ups_that_did_not_run() -> None:
    tier, facts = tiers.choose("wide"), {"kubernetes": "Kubernetes v1.2.3", "machine": "2 cores"}
    before = report.rows(results())
    page = report.replace_section("# Page\n", tier.name, report.section(tier, before, facts))
    assert report.rows_of_page(page, tier.name, facts["kubernetes"]) == before
    again = report.rows([SetupResult("stock", results()[0].specs[:1], 50, DAY)])
    shown = report.merged(report.rows_of_page(page, tier.name, facts["kubernetes"]), again, list(Setup))
    assert report.table(shown).splitlines()[2:] == [
        f"| stock | 1 | 1 | 0 | 0 | 50 | {DAY} |",
        f"| ours | 2 | 1 | 1 | 0 | 61 | {DAY} |",
    ]
    assert report.failures(shown) == "- ours: `[sig-network] Services should serve`"


@pytest.mark.parametrize("kubernetes", ["Kubernetes v1.2.30", "Kubernetes v1.2", "Kubernetes v1.2.3-rc.1"])
def test_page_keeps_no_rows_of_another_kubernetes(kubernetes: str) -> None:
    tier, facts = tiers.choose("wide"), {"kubernetes": "Kubernetes v1.2.3", "machine": "2 cores"}
    page = report.replace_section("", tier.name, report.section(tier, report.rows(results()), facts))
    assert report.rows_of_page(page, tier.name, kubernetes) == []
    assert report.rows_of_page(page, "apps", facts["kubernetes"]) == []


def test_suite_that_fails_without_a_failed_spec_is_an_error() -> None:
    log, specs = Path("e2e.log"), junit.read(REPORT)
    suite_run.check(1, specs, log)
    suite_run.check(0, specs[:1], log)
    with pytest.raises(ZonewiseError, match=r"code 1, though no spec failed: see e2e\.log"):
        suite_run.check(1, [specs[0], specs[3]], log)
    with pytest.raises(ZonewiseError, match="no spec was selected"):
        suite_run.check(0, [], log)


STUBBORN = "trap : TERM; sleep 600 & echo $!; while :; do sleep 0.1; done"  # swallows SIGTERM, as ginkgo does


def child_of(output: Path) -> int:
    """Waits for the first line of the output, the child's number."""
    deadline = time.monotonic() + 10
    while not output.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(output.read_text())


def wait_for_end(process: int) -> None:
    deadline = time.monotonic() + 10
    with suppress(FileNotFoundError, ProcessLookupError):
        while ") Z " not in Path(f"/proc/{process}/stat").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_stopping_the_suite_ends_its_whole_group(tmp_path: Path) -> None:
    output = tmp_path / "log"
    with output.open("w") as file:
        process = suite_run.session(["sh", "-c", STUBBORN], file.fileno())
    child = child_of(output)
    suite_run.stop(process, within_seconds=0.2)
    assert process.returncode < 0
    wait_for_end(child)


def test_suite_ends_when_its_runner_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "log"
    output.touch()
    program = "import sys; from support.conformance import suite_run as s; s.session(sys.argv[1:], 1).wait()"
    with output.open("w") as file:
        script = "sleep 600 & echo $!; wait"
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        runner = subprocess.Popen([sys.executable, "-c", program, "sh", "-c", script], stdout=file, env=path)
    child = child_of(output)
    runner.kill()
    runner.wait()
    wait_for_end(child)


def test_labs_of_two_clones_have_different_names() -> None:
    here, there = (lab_run.default_name(Path(root)) for root in ("/work/main", "/work/other"))
    assert here != there
    assert re.fullmatch(r"e2e-[0-9a-f]{6}", here)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_interrupts_the_removal_of_a_lab(number: int) -> None:
    before = signal.getsignal(number)
    with labs.ignoring_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_cache_keeps_the_two_archives_used_last(tmp_path: Path) -> None:
    for kind in ("images", "debian"):
        for age, name in enumerate("abc"):
            path = tmp_path / f"{kind}-{name}.tar"
            path.touch()
            os.utime(path, (1000 - age, 1000 - age))
    images.remove_unused(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["debian-a", "debian-b", "images-a", "images-b"]


def test_cache_loses_what_killed_builds_left(tmp_path: Path) -> None:
    (tmp_path / "zonewise-build-x").mkdir()
    for name in ("zonewise-build-x/layer.tar", "images-a.new", "images-b.tar", "lock"):
        (tmp_path / name).touch()
    images.remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images-b.tar", "lock"]


LISTED = [
    "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
    "registry.k8s.io/e2e-test-images/nginx:1.15-4",
    "registry.k8s.io/e2e-test-images/nginx:1.27-0",
    "registry.k8s.io/e2e-test-images/perl:5.26",
    "registry.k8s.io/pause:3.10.2",
]


def built() -> RecipeInputs:
    files = dict.fromkeys((*programs.IN_IMAGES, "coredns", "pause"), b"program")
    return RecipeInputs(programs=files, porter={"localhost.crt": "x"}, busybox=ImageFiles(), debian=blob(b"debian"))


def test_images_have_the_names_of_the_suite_and_share_a_layer() -> None:
    images = {image.name: image for image in recipes.images(LISTED, built())}
    assert set(images) == {*LISTED, recipes.COREDNS} - {"registry.k8s.io/e2e-test-images/perl:5.26"}
    [agnhost, old, new] = [images[name] for name in LISTED[:3]]
    assert agnhost.layers[0] == old.layers[0] == blob(b"debian")
    assert (agnhost.settings["Entrypoint"], agnhost.settings["Cmd"]) == (["/agnhost"], ["pause"])
    assert old.layers == new.layers
    assert old.settings != new.settings  # otherwise they were one image with two names


def go_module() -> dict[str, Any]:
    text = (programs.SOURCES / "go.mod").read_text()
    return {"text": text, "kubernetes": re.findall(r"k8s\.io/kubernetes (v\S+)", text)}


def test_the_suite_is_of_the_labs_kubernetes() -> None:
    module = go_module()
    assert module["kubernetes"] == [DEFAULT_VERSION]
    part = DEFAULT_VERSION.replace("v1.", "v0.")
    assert set(re.findall(r"=> k8s\.io/\S+ (v\S+)", module["text"])) == {part}


def test_coredns_manifest_names_the_image_that_is_made() -> None:
    text = Path(setups.MANIFESTS, "coredns.yaml").read_text()
    assert f"image: {recipes.COREDNS}\n" in text


def test_sidecars_have_the_versions_that_go_modules_require() -> None:
    names = {**sidecars.image_names("provisioner"), **sidecars.image_names("snapshots")}
    assert {name: image.rpartition(":")[0] for name, image in names.items()} == {
        name: f"registry.k8s.io/sig-storage/{name}"
        for name in ("csi-provisioner", "csi-resizer", "csi-snapshotter", "snapshot-controller")
    }
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", image.rpartition(":")[2]) for image in names.values())


def test_driver_runs_with_the_sidecars_that_were_built() -> None:
    documents = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, ManifestValues(image="csi:1"))
    built = {
        f"registry.k8s.io/sig-storage/csi-{name}": f"built-{name}" for name in ("provisioner", "resizer", "snapshotter")
    }
    tagged = [storage.with_tags(document, built) for document in documents]
    (deployment,) = (document for document in tagged if document["kind"] == "Deployment")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    assert [container["image"] for container in containers] == ["csi:1", *built.values()]


@pytest.mark.parametrize("kind", StorageKind)
def test_suites_driver_definition_names_installed_classes(kind: StorageKind) -> None:
    documents = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, ManifestValues(image="csi:1"))
    classes = {document["metadata"]["name"] for document in documents if document["kind"] == "StorageClass"}
    definition = storage.driver_definition(kind)
    assert definition["StorageClass"]["FromExistingClassName"] in classes
    assert (
        f"kind: VolumeSnapshotClass\nmetadata: {{name: {definition['SnapshotClass']['FromExistingClassName']}}}"
        in (setups.MANIFESTS / "snapshots.yaml").read_text()
    )
