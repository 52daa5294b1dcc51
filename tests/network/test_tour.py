"""What `make up` starts, and the README's tour of it, typed as it stands there; then everything is taken away again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.docs.commands import Block, blocks, pages
from zonewise.lab import labs, processes, state
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.demo import installed, zone_answers
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes, sandbox
from zonewise.lab.state import Lab, LabOptions

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.timeout(1200)]
PATIENCE_SECONDS = 240.0
KUBECTL = 'kubectl() { zonewise lab kubectl -- "$@"; }'
"""People have one of their own."""
ANSWERS = 'zonewise() { command zonewise "$@" || [[ "$1 $?" =~ ^(explain|status)\\ 1$ ]]; }'
"""By a 1 they say that something is wrong, which is what people are to see."""
STOPS = ("see", "ask", "prefer", "names", "drain", "lose a zone", "take over")
TOUR = dict(zip(STOPS, (block.commands for block in blocks("README.md", "run")), strict=True))
"""In the order of the README, and each goes on from the one before."""
DOCS = [block for page in pages() if page != "README.md" for block in blocks(page, "run")]


@pytest.fixture(scope="module")
def tour() -> Iterator[Lab]:
    """As `make up` has it where Ceph is installed, under a name of its own."""
    name = f"test-{os.getpid()}-tour"
    options = LabOptions(zones=zone_names(3), nodes_per_zone=2, kube_proxy=True, demo=True, zonewise=True, ceph=True)
    try:
        yield labs.up(name, options, lambda _step: None)
    finally:
        labs.down(name, lambda _step: None)


def typed(lab: Lab, commands: list[str], cwd: Path | None = None) -> str:
    """In one shell that ends at the first command that fails."""
    environment = os.environ | {
        "ZONEWISE_LAB": lab.name,
        "KUBECONFIG": str(lab.node_kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join([KUBECTL, ANSWERS, *commands])],
        cwd=cwd, env=environment, check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{commands}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def until_in_zone(lab: Lab, wanted: Callable[[float], bool], *, by_name: bool = False) -> None:
    """Until every question is answered, and so much of it by the zone that asked; a busy machine may take its time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        counted = zone_answers.ask(lab, 20, by_name=by_name)
        total = sum(counts.total() for counts in counted.values())
        if zone_answers.complete(counted) and wanted(sum(counts[zone] for zone, counts in counted.items()) / total):
            return
        assert time.monotonic() < deadline, counted


def test_everything_runs_and_can_be_seen(tour: Lab) -> None:
    said = typed(tour, TOUR["see"])
    for name in (
        "zonewise-controller",
        "zonewise-webhook",
        "zonewise-guard",
        "zonewise-proxy",
        "shop/catalog",
        "zonewise-dns",
        "zonewise-csi-node",
    ):
        assert name in said
    with urllib.request.urlopen(f"http://127.0.0.1:{installed.dashboard_port(tour)}/", timeout=30) as page:
        assert b"Zonewise" in page.read()
    typed(tour, TOUR["ask"])
    until_in_zone(tour, lambda share: share < 0.6)


def test_programs_run_under_their_own_accounts(tour: Lab) -> None:
    """Nobody is the administrator whose kubeconfig the lab's own parts use."""
    users = set()
    for node in nodes.plan_of(tour).nodes:
        for path in sandbox.pods_directory(tour.directory, node.name).glob("*/kubeconfig"):
            (user,) = json.loads(path.read_bytes())["users"]
            users.add(tuple(user["user"]))
    assert users == {("token",)}


def zonewise(lab: Lab, *words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("zonewise")), *words, "--kubeconfig", str(lab.node_kubeconfig)]


def looks(lab: Lab) -> Generator[dict[str, Any]]:
    """What `zonewise status -w` says, look after look."""
    command = zonewise(lab, "status", "-w", "--every", "0.5", "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        text = ""
        try:
            for line in watching.stdout:
                text = (text + line).lstrip()
                if line.startswith("}"):
                    yield json.loads(text)
                    text = ""
        finally:
            watching.terminate()


def test_status_sees_bytes_through_the_api_server(tour: Lab) -> None:
    """Live: every proxy's pod is asked, and what it counted grows."""
    watched = looks(tour)
    traffic_rows = (look["traffic"] for look in watched)
    whole = (
        traffic_row["inZone"] + traffic_row["crossZone"]
        for traffic_row in traffic_rows
        if traffic_row["answered"] == traffic_row["proxies"] == 6
    )
    first = next(counted for counted in whole if counted)
    assert next(counted for counted in whole if counted > first)
    watched.close()


def test_the_doctor_reaches_webhooks_and_finds_every_right(tour: Lab) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # each webhook has five seconds to answer, which a busy machine may not give it
        done = subprocess.run(zonewise(tour, "doctor", "-o", "json"), check=False, capture_output=True, timeout=600)
        levels = {found["code"]: found["level"] for found in json.loads(done.stdout)["findings"]}
        assert levels["ComponentRights"] == "Fine"
        if levels.get("WebhookReached") == "Fine" and not levels.keys() & {"WebhookUnreachable", "WebhookUntried"}:
            return
        assert time.monotonic() < deadline, levels


def test_traffic_stays_at_home_when_asked_to(tour: Lab) -> None:
    typed(tour, TOUR["prefer"])
    until_in_zone(tour, lambda share: share == 1.0)


def test_names_mean_the_pods_of_the_clients_zone(tour: Lab) -> None:
    until_in_zone(tour, lambda share: share < 0.6, by_name=True)
    typed(tour, TOUR["names"])
    until_in_zone(tour, lambda share: share == 1.0, by_name=True)


def test_a_drain_is_held_back_by_the_budget_and_ends(tour: Lab) -> None:
    assert "node/zone-a-1 drained" in typed(tour, TOUR["drain"])


def test_clients_keep_working_when_a_zone_is_lost(tour: Lab) -> None:
    typed(tour, TOUR["lose a zone"])
    until_in_zone(tour, lambda share: share > 0.9)


def test_a_lost_zones_volumes_are_taken_over(tour: Lab) -> None:
    said = typed(tour, TOUR["take over"])
    assert "lies in pool rbd-zone-c" in said
    assert "zone=zone-c is served by zone-a, zone-b (4 nodes)" in said
    (place,) = [line for line in said.splitlines() if line.startswith("orders-")]
    assert "zone-a" in place or "zone-b" in place


@pytest.mark.parametrize("block", DOCS, ids=[block.location for block in DOCS])
def test_what_the_docs_say_can_be_typed(tour: Lab, block: Block, tmp_path: Path) -> None:
    typed(tour, block.commands, tmp_path)


def test_the_shop_keeps_serving_after_uninstall(tour: Lab) -> None:
    assert "zonewise" in rules(tour)
    ready = "kubectl wait node --all --for=condition=Ready --timeout=240s"  # nodes that are away keep their rules
    typed(tour, [ready, "zonewise uninstall --yes"])
    assert "zonewise" not in rules(tour)
    until_in_zone(tour, lambda share: share < 0.6)


def rules(lab: Lab) -> str:
    """The nftables tables of all nodes."""
    found = nodes.plan_of(lab).nodes
    return "".join(namespaces.run(namespaces.command(node.namespace, ["nft", "list", "tables"])) for node in found)


def test_down_leaves_nothing(tour: Lab) -> None:
    started = [*processes.recorded(tour.directory)]
    inside = namespaces.pids_in(namespaces.of_lab(tour.name))
    assert inside
    assert "dashboard" in {process.name for process in started}
    labs.down(tour.name, lambda _step: None)
    assert not any(process.running for process in started)
    assert namespaces.of_lab(tour.name) == []
    assert state.find(tour.name) is None
    assert not tour.directory.exists()
