"""Stored formats: what 0.1 wrote is read; a newer version is refused and left as it is; a torn one is set aside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import structlog.testing

from support.diagnostics.cluster import NOW, make_cluster_snapshot
from support.planning.cluster import service
from unit.disruption.build import ACROSS, NODES, pod
from unit.routing.build import cluster, endpoints
from unit.routing.build import service as routed_service
from zonewise.api.names import ROUTING_STATE, SAME_ZONE
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.journal_entry import JournalEntry
from zonewise.ceph.decide.takeover import DOCUMENT, TakeoverError, parse_takeover_map
from zonewise.ceph.node.stage_records import StageRecord, StageRecords
from zonewise.diagnostics.decide.doctor.checks import diagnose
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.disruption.decide import status as budget_status
from zonewise.disruption.decide.charge import BatchItem, ChargeAction, ChargeRequest, ChargeResult, judge_batch
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, PodStage
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.lab import records, state
from zonewise.lab import status as lab_status
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.controlplane.controlplane import ControlPlaneRecord
from zonewise.lab.network.shaping import Shaping
from zonewise.lab.state import Lab
from zonewise.objects import stored
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.stored import NewerError, TornError
from zonewise.routing import decide, express
from zonewise.routing.weights_annotation import read_weights, weights_problem
from zonewise.slices.decide.service_status import parse_state
from zonewise.slices.decide.status_diff import StatusReport, report_on

RECORDED = Path(__file__).parents[1] / "recorded/0.1"
"""As 0.1 wrote them."""


def _file(type_: type[Any]) -> Callable[[Path], Any]:
    return lambda path: records.read(path, type_)


def _json(type_: type[Any]) -> Callable[[Path], Any]:
    return lambda path: stored.read(path.read_bytes(), type_, path.name)


FORMATS: dict[str, Callable[[Path], Any]] = {
    "stage.json": _file(StageRecord),
    "journal-entry.json": _json(JournalEntry),
    "routing-annotation.json": lambda path: parse_state(path.read_text(errors="replace")),
    "lab.json": _file(Lab),
    "control-plane.json": _file(ControlPlaneRecord),
    "ceph.json": _file(LabCeph),
    "shaping.json": _file(Shaping),
}
TORN = {
    "empty": lambda _: b"",
    "cut off": lambda text: text[: len(text) // 2],
    "zeros": lambda text: bytes(len(text)),
    "no JSON": lambda _: b"stage\n",
    "a list": lambda _: b"[]",
    "nothing in it": lambda _: b"null",
    "other types": lambda text: json.dumps({key: [7] for key in json.loads(text)}).encode(),
    "no version at all": lambda text: json.dumps({**json.loads(text), "version": "new"}).encode(),
    "a version before the first": lambda text: json.dumps({**json.loads(text), "version": 0}).encode(),
    "no text": lambda text: text[:-3] + b"\xff\xfe}",
}


def newer(name: str, version: int = 2) -> bytes:
    """The version is known before anything else is: here no other field is as it was."""
    fields = {key: [7] for key in json.loads((RECORDED / name).read_bytes())}
    return json.dumps({"version": version, **fields}).encode()


def known_fields(document: Any, earlier: Any) -> Any:
    """Without fields that were added since: earlier releases ignore them."""
    if not isinstance(document, dict) or not isinstance(earlier, dict):
        return document
    return {key: known_fields(value, earlier[key]) for key, value in document.items() if key in earlier}


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_first_release_wrote_is_read_and_gets_a_version(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((RECORDED / name).read_bytes())
    read = FORMATS[name](path)
    again, recorded = json.loads(msgspec.json.encode(read, enc_hook=str)), json.loads((RECORDED / name).read_bytes())
    assert again["version"] == 1
    assert known_fields(again, recorded) == recorded


@pytest.mark.parametrize("name", FORMATS)
def test_a_newer_version_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(newer(name))
    with pytest.raises(NewerError, match="version 2, and this release knows 1"):
        FORMATS[name](path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: newer(name)}


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("name", FORMATS)
def test_torn_state_is_set_aside_and_newer_state_is_kept(name: str, torn: str, tmp_path: Path) -> None:
    path, content = tmp_path / name, TORN[torn]((RECORDED / name).read_bytes())
    path.write_bytes(content)
    with pytest.raises((TornError, FileNotFoundError)):
        FORMATS[name](path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [content]
    in_file = not path.exists()
    assert in_file == (FORMATS[name].__qualname__.startswith("_file"))


# Stage records of a node.

VOLUME: str = json.loads((RECORDED / "stage.json").read_bytes())["volume"]


def stage(root: Path, volume: str, content: bytes) -> Path:
    path = StageRecords(root).directory(volume) / "stage.json"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def test_torn_and_newer_stage_records_do_not_stop_the_others(tmp_path: Path) -> None:
    good = (RECORDED / "stage.json").read_bytes()
    bad = {name: stage(tmp_path, f"volume {name}", damage(good)) for name, damage in TORN.items()}
    later = stage(tmp_path, "volume later", newer("stage.json"))
    stage(tmp_path, VOLUME, good)
    with structlog.testing.capture_logs() as lines:
        assert [record.volume for record in StageRecords(tmp_path).all()] == [VOLUME]
        assert [record.volume for record in StageRecords(tmp_path).all()] == [VOLUME]
    said = [line["problem"] for line in lines]
    assert len(said) == len(bad) + 1, "each is named once"
    assert all(sum(str(path) in line for line in said) == 1 for path in (*bad.values(), later))
    assert later.read_bytes() == newer("stage.json")
    for name, path in bad.items():
        (aside,) = path.parent.iterdir()
        assert (aside.name.startswith("stage.json.torn-"), aside.read_bytes()) == (True, TORN[name](good))


def test_record_that_is_a_directory_is_set_aside(tmp_path: Path) -> None:
    stage(tmp_path, VOLUME, (RECORDED / "stage.json").read_bytes())
    bad = StageRecords(tmp_path).directory("bad") / "stage.json"
    (bad / "inside").mkdir(parents=True)
    with structlog.testing.capture_logs() as lines:
        assert [record.volume for record in StageRecords(tmp_path).all()] == [VOLUME]
    (aside,) = bad.parent.iterdir()
    assert aside.name.startswith("stage.json.torn-")
    assert [line["renamed"] for line in lines] == [aside.name]
    assert StageRecords(tmp_path).is_torn("bad")
    StageRecords(tmp_path).drop("bad")
    assert not bad.parent.exists()


def test_record_that_the_disk_does_not_give_stops_only_its_volume(tmp_path: Path) -> None:
    stage(tmp_path, VOLUME, (RECORDED / "stage.json").read_bytes())
    bad = StageRecords(tmp_path).directory("bad") / "stage.json"
    bad.parent.mkdir()
    bad.symlink_to("/proc/self/mem")  # whose first bytes nothing can read: EIO
    with structlog.testing.capture_logs() as lines:
        assert [record.volume for record in StageRecords(tmp_path).all()] == [VOLUME]
    assert [line["problem"] for line in lines] == [f"{bad}: Input/output error"]
    with pytest.raises(CsiError, match=r"volume bad: .*stage\.json can't be read: Input/output error") as refused:
        StageRecords(tmp_path).get("bad")
    assert refused.value.code is GrpcCode.FAILED_PRECONDITION
    assert bad.is_symlink()


def test_calls_for_a_volume_of_a_newer_record_are_refused(tmp_path: Path) -> None:
    path = stage(tmp_path, VOLUME, newer("stage.json"))
    with pytest.raises(CsiError, match=f"volume {VOLUME}.*version 2") as refused:
        StageRecords(tmp_path).get(VOLUME)
    assert refused.value.code is GrpcCode.FAILED_PRECONDITION
    assert path.read_bytes() == newer("stage.json")


def test_a_volume_with_a_torn_record_can_be_staged_again(tmp_path: Path) -> None:
    path = stage(tmp_path, VOLUME, b"{")
    stages = StageRecords(tmp_path)
    assert (stages.get(VOLUME), stages.is_torn(VOLUME)) == (None, True)
    stages.put(msgspec.json.decode((RECORDED / "stage.json").read_bytes(), type=StageRecord))
    record = stages.get(VOLUME)
    assert record is not None
    assert (record.volume, stages.is_torn(VOLUME)) == (VOLUME, False)
    stages.drop(VOLUME)
    assert not path.parent.exists()


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
import msgspec
from zonewise.ceph.node.stage_records import StageRecord, StageRecords
stages = StageRecords(Path(sys.argv[1]))
record = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=StageRecord)
for number in range(sys.maxsize):
    stages.put(msgspec.structs.replace(record, targets={f"/{n}": True for n in range(number % 300)}))
    if number == 20:
        print("going on", flush=True)
"""


def test_a_record_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    random = Random(1)
    for _ in range(10):
        command = [sys.executable, "-c", _WRITE_FOR_EVER, tmp_path, RECORDED / "stage.json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"going on\n"
            time.sleep(random.random() / 50)  # anywhere in a write
            writer.kill()
        stages = StageRecords(tmp_path)
        assert [record.volume for record in stages.all()] == [VOLUME]
        assert not stages.is_torn(VOLUME)


# Labs.


def test_a_newer_lab_is_listed_and_nothing_is_done_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_STATE", str(tmp_path))
    for name, content in (("later", newer("lab.json")), ("torn", b"{"), ("fine", (RECORDED / "lab.json").read_bytes())):
        state.directory_of(name).mkdir(parents=True)
        (state.directory_of(name) / "lab.json").write_bytes(content)
    assert {lab.name: lab.phase for lab in lab_status.listed()} == {"later": None, "torn": None, "fine": "ready"}
    with pytest.raises(NewerError, match="version 2"):
        state.get("later")
    with pytest.raises(state.NoLabError):
        state.get("torn")
    assert (state.directory_of("later") / "lab.json").read_bytes() == newer("lab.json")


# The routing state of a Service.

PREFER = routed_service({SAME_ZONE: "Prefer"})
THREE = cluster({"a": 1, "b": 1, "c": 1})


def report(annotation: str | None, *, policy: bool = True) -> StatusReport:
    subject = PREFER if policy else routed_service({})
    decisions = {"IPv4": decide(subject, endpoints({"a": 4, "b": 4, "c": 4}), THREE)}
    expressions = {family: express(decision, THREE) for family, decision in decisions.items()}
    return report_on(subject, decisions, expressions, THREE, annotation, NOW)


@pytest.mark.parametrize("policy", [True, False], ids=["with a policy", "policy removed"])
def test_a_newer_routing_state_is_neither_replaced_nor_removed(policy: bool) -> None:
    later = newer("routing-annotation.json").decode()
    made = report(later, policy=policy)
    assert (made.changes, made.text, made.notes) == (False, later, ())
    assert "version 2" in made.problem


def test_a_torn_routing_state_is_replaced_and_named() -> None:
    made = report('{"policy": "same-zo')
    assert made.changes
    assert made.text == report(None).text
    assert "annotation zonewise.dev/routing can't be read" in made.problem


def test_an_unchanged_routing_state_of_the_first_release_is_not_written_again() -> None:
    fresh = report(None)
    assert fresh.text is not None
    of_first = {key: value for key, value in json.loads(fresh.text).items() if key != "version"}
    assert not report(json.dumps(of_first)).changes


# Weights.


def test_weights_of_the_first_release_are_written_the_same() -> None:
    text = (RECORDED / "weights-annotation.json").read_text()
    assert read_weights(text) == {"10.0.0.1": {"zone-a": 1.0, "zone-b": 0.5}}
    assert weights_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"version": 2, "zones": []}', "version 2"), ('[{"zones": {', "can't be read"), ("{}", "can't be read")],
)
def test_weights_that_cannot_be_used_count_as_none(text: str, problem: str) -> None:
    assert read_weights(text) == {}
    assert problem in weights_problem(text)


# The takeover map, which had versions before.


@pytest.mark.parametrize("text", ['{"version": 3, "topology-takeover": {}}', '{"version": 2, "topo', "", "[]"])
def test_a_takeover_map_that_cannot_be_used_is_refused_whole(text: str) -> None:
    assert parse_takeover_map({DOCUMENT: (RECORDED / "takeover.json").read_text()}, ["zone"])
    with pytest.raises(TakeoverError):
        parse_takeover_map({DOCUMENT: text}, ["zone"])


# Budgets.


def stored_budget(version: int) -> TopologyDisruptionBudget:
    status = json.loads((RECORDED / "budget-status.json").read_bytes())
    metadata = {"name": "web", "namespace": "shop", "generation": 1}
    return msgspec.convert({"metadata": metadata, "status": {**status, "version": version}}, TopologyDisruptionBudget)


def test_the_ledger_of_the_first_release_is_read_and_gets_a_version() -> None:
    recorded = json.loads((RECORDED / "budget-status.json").read_bytes())
    first = msgspec.convert({"status": recorded}, TopologyDisruptionBudget)
    read = budget_status.read(ACROSS, first)
    assert [entry.name for entry in read.ledger.values()] == ["web-1", "web-2"]
    assert budget_status.document(read) == {"version": 1, **recorded}


@pytest.mark.parametrize(
    ("of", "outcome"),
    [
        (pod("b0"), ChargeResult.DENIED),
        (pod("b0", ready=False), ChargeResult.DENIED),
        (pod("b0", stage=PodStage.PENDING), ChargeResult.ALLOWED),
        (pod("b0", terminating=True), ChargeResult.ALLOWED),
    ],
    ids=["ready", "not ready", "pending", "terminating"],
)
def test_no_running_pod_goes_by_a_newer_ledger_and_nothing_is_charged(of: PodFacts, outcome: ChargeResult) -> None:
    case = BudgetCase(ACROSS, budget_status.read(ACROSS, stored_budget(2)))
    request = ChargeRequest(pod=of, node_domains=NodeDomains(NODES), time="now", cases=(case,))
    for action in ChargeAction:
        result = judge_batch(case, "1", [BatchItem(request, action)])
        assert not result.writes
        if action is not ChargeAction.REFUND:
            (answer,) = result.answers
            assert answer.outcome is outcome
            assert answer.verdict is not None
            denied = outcome is ChargeResult.DENIED
            assert (answer.verdict.reason.code is DisruptionCode.STATUS_NEWER) == denied
            assert ("version 2" in answer.verdict.reason.sentence) == denied


def test_doctor_names_state_that_cannot_be_used() -> None:
    snapshot = make_cluster_snapshot()
    later = newer("routing-annotation.json").decode()
    facts = DoctorFacts(
        snapshot=replace(snapshot, budgets=[stored_budget(2)], services=[service("front", **{ROUTING_STATE: later})])
    )
    (found,) = [finding for finding in diagnose(facts, NOW).findings if finding.code == "StateUnusable"]
    assert found.objects == ("budget shop/web", "Service default/front")
    assert "version 2" in found.sentence
