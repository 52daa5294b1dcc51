"""The lab of `make up`, the README's tour with its literal commands, and removal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.docs.commands import Block, blocks, pages
from support.lab import footprint
from support.lab.machine import until
from support.lab.written_lines import VOLUMES, WrittenLines
from support.process import scrape, wait_for
from zonewise.lab import labs, processes, slots, state
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.decide.cgroup_hierarchies import lab_cgroup
from zonewise.lab.demo import installed, zone_answers
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups, node_programs, nodes
from zonewise.lab.state import Lab, LabOptions

pytestmark = [pytest.mark.xdist_group("tour"), pytest.mark.timeout(1200)]
PATIENCE_SECONDS = 240.0
KUBECTL = 'kubectl() { zonewise lab kubectl -- "$@"; }'
"""Users have their own kubectl."""
ALLOW_EXIT_1 = 'zonewise() { command zonewise "$@" || [[ "$1 $?" =~ ^(explain|status)\\ 1$ ]]; }'
"""Exit code 1 of these commands reports a problem, which the tour expects."""
READ_STARTS = """kubectl -n shop exec deployment/orders -- python -c 'print(open("/data/starts").read())'"""
PROGRAMS = {
    f"zonewise-{name}"
    for name in ("controller", "webhook", "disruption", "guard", "proxy", "dns", "csi-controller", "csi-node")
}
STEPS = ("see", "ask", "prefer", "names", "drain", "lose a zone", "take over")
TOUR = dict(zip(STEPS, (block.commands for block in blocks("README.md", "run")), strict=True))
"""In the order of the README; each step builds on the previous one."""
DOCS = [block for page in pages() if page != "README.md" for block in blocks(page, "run")]


@dataclass(frozen=True)
class Before:
    """The machine before the lab."""

    dead_devices: set[str]
    orphans: set[str]
    settings: dict[str, str]


@pytest.fixture(scope="module")
def before() -> Before:
    return Before(footprint.dead_loop_devices(), footprint.orphans(), footprint.settings())


@pytest.fixture(scope="module")
def tour(before: Before) -> Iterator[Lab]:
    """The lab of `make up` with Ceph, under its own name."""
    name = f"test-{os.getpid()}-tour"
    options = LabOptions(
        zones=zone_names(3),
        nodes_per_zone=2,
        kube_proxy=True,
        demo=True,
        zonewise=True,
        ceph=True,
    )
    try:
        yield labs.up(name, options, lambda _step: None)
    finally:
        labs.down(name, lambda _step: None)


def run_commands(lab: Lab, commands: list[str], cwd: Path | None = None) -> str:
    """Run in one shell that stops at the first failing command."""
    environment = os.environ | {
        "ZONEWISE_LAB": lab.name,
        "KUBECONFIG": str(lab.node_kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    result = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join([KUBECTL, ALLOW_EXIT_1, *commands])],
        cwd=cwd, env=environment, check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, f"{commands}: {result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


def until_in_zone(lab: Lab, expected: Callable[[float], bool], *, by_name: bool = False) -> None:
    """Wait until all requests are answered and the in-zone share is as expected."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        counted = zone_answers.ask(lab, 20, by_name=by_name)
        total = sum(counts.total() for counts in counted.values())
        if zone_answers.complete(counted) and expected(sum(counts[zone] for zone, counts in counted.items()) / total):
            return
        assert time.monotonic() < deadline, counted


def test_status_lists_all_components_and_dashboard_answers(tour: Lab) -> None:
    output = run_commands(tour, TOUR["see"])
    for name in (
        "zonewise-controller",
        "zonewise-webhook",
        "zonewise-guard",
        "zonewise-proxy",
        "shop/catalog",
        "zonewise-dns",
        "zonewise-csi-node",
    ):
        assert name in output
    with urllib.request.urlopen(f"http://127.0.0.1:{installed.dashboard_port(tour)}/", timeout=30) as response:
        assert b"Zonewise" in response.read()
    run_commands(tour, TOUR["ask"])
    until_in_zone(tour, lambda share: share < 0.6)


def zonewise(lab: Lab, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("zonewise")), *arguments, "--kubeconfig", str(lab.node_kubeconfig)]


def status_snapshots(lab: Lab) -> Generator[dict[str, Any]]:
    """Successive outputs of `zonewise status -w`."""
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


def test_status_shows_growing_traffic_of_all_proxies(tour: Lab) -> None:
    """All proxies answer, and their byte counts grow."""
    snapshots = status_snapshots(tour)
    traffic_rows = (snapshot["traffic"] for snapshot in snapshots)
    totals = (
        traffic_row["inZone"] + traffic_row["crossZone"]
        for traffic_row in traffic_rows
        if traffic_row["answered"] == traffic_row["proxies"] == 6
    )
    first = next(counted for counted in totals if counted)
    assert next(counted for counted in totals if counted > first)
    snapshots.close()


def test_metrics_of_every_program_need_a_token(tour: Lab) -> None:
    """From another pod's place in the network; the health port next to it answers probes only."""
    client = nodes.plan_of(tour).nodes[0].namespace
    command = ["kubectl", "-n", "zonewise-system", "create", "token", "zonewise-metrics-reader"]
    token = run_commands(tour, [" ".join([*command, "--audience=zonewise-metrics"])]).strip()
    pods = json.loads(run_commands(tour, ["kubectl get pods -A -o json"]))["items"]
    scraped = set()
    for pod in pods:
        for container in pod["spec"]["containers"]:
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", ()) if "name" in port}
            if "https-metrics" not in ports:
                continue
            address = pod["status"]["podIP"]
            url = f"https://{address}:{ports['https-metrics']}/metrics"
            statuses = [
                namespaces.inside(client, lambda url=url, token=token: scrape(url, token))[0] for token in ("", token)
            ]
            assert statuses == [401, 200], pod["metadata"]["name"]
            scraped.add(pod["metadata"]["labels"]["app.kubernetes.io/name"])
    assert scraped == PROGRAMS


def test_the_dashboard_reads_all_proxies_with_its_token(tour: Lab) -> None:
    """Directly: not through the API server, which it falls back to."""
    with urllib.request.urlopen(f"http://127.0.0.1:{installed.dashboard_port(tour)}/events", timeout=60) as stream:
        assert next(line for line in stream if b'"answering":6' in line)
    log = processes.log_path(tour.directory, installed.DASHBOARD).read_text().splitlines()
    port = next(json.loads(line)["health_port"] for line in log if '"health_port"' in line)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert b'purpose="traffic"' not in answer.read()


def test_doctor_reaches_webhooks_and_finds_all_rights(tour: Lab) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # on a busy machine a webhook may miss its five-second deadline
        result = subprocess.run(zonewise(tour, "doctor", "-o", "json"), check=False, capture_output=True, timeout=600)
        levels = {finding["code"]: finding["level"] for finding in json.loads(result.stdout)["findings"]}
        assert levels["ComponentRights"] == "Fine"
        if levels.get("WebhookReached") == "Fine" and not levels.keys() & {"WebhookUnreachable", "WebhookUntried"}:
            return
        assert time.monotonic() < deadline, levels


def test_preferred_traffic_stays_in_its_zone(tour: Lab) -> None:
    run_commands(tour, TOUR["prefer"])
    until_in_zone(tour, lambda share: share == 1.0)


def test_names_resolve_to_pods_of_the_clients_zone(tour: Lab) -> None:
    until_in_zone(tour, lambda share: share < 0.6, by_name=True)
    run_commands(tour, TOUR["names"])
    until_in_zone(tour, lambda share: share == 1.0, by_name=True)


def test_drain_waits_for_the_budget_and_finishes(tour: Lab) -> None:
    assert "node/zone-a-1 drained" in run_commands(tour, TOUR["drain"])


def node_plugin(lab: Lab, node: str) -> list[int]:
    """The driver's processes in the node's own PID namespace."""
    own = Path(f"/proc/{node_programs.first_process(lab.directory, node)}/ns/pid").stat()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            runs = b"\0csi\0node\0" in process.joinpath("cmdline").read_bytes()
            if runs and os.path.samestat(process.joinpath("ns/pid").stat(), own):
                found.append(int(process.name))
    return found


def kubelet(lab: Lab, node: str) -> list[int]:
    return [unit.pid for unit in node_programs.units(lab.directory, node, ["kubelet"]) if unit.pid]


def kill_and_wait(pids: Callable[[], list[int]]) -> None:
    """Until others have taken their place."""
    before = pids()
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pids() and not set(pids()) & set(before))


def test_mounted_volumes_outlive_their_node_plugin_and_the_kubelet(tour: Lab) -> None:
    """Written all the time; after that the new plugin unmounts and deletes what the old one had mounted."""
    writer = WrittenLines(tour, "zone-a")
    writer.create()
    node = writer.node
    for pids_of in (node_plugin, kubelet):
        kill_and_wait(lambda pids_of=pids_of: pids_of(tour, node))
        run_commands(tour, [f"kubectl wait node {node} --for=condition=Ready --timeout=120s"])
        wait_for(lambda: writer.reachable)
        for volume in VOLUMES:
            before = len(writer.lines(volume))
            wait_for(lambda volume=volume, before=before: len(writer.lines(volume)) > before)
    assert writer.restarts == 0
    for volume in VOLUMES:
        lines = writer.lines(volume)
        assert lines == list(range(len(lines)))
    writer.remove()


def test_clients_are_served_after_the_loss_of_a_zone(tour: Lab) -> None:
    run_commands(tour, TOUR["lose a zone"])
    until_in_zone(tour, lambda share: share > 0.9)


def test_volumes_of_a_lost_zone_are_taken_over(tour: Lab) -> None:
    output = run_commands(tour, TOUR["take over"])
    assert "lies in pool rbd-zone-c" in output
    assert "zone=zone-c is served by zone-a, zone-b (4 nodes)" in output
    (orders_line,) = [line for line in output.splitlines() if line.startswith("orders-")]
    assert "zone-a" in orders_line or "zone-b" in orders_line
    starts = run_commands(tour, [READ_STARTS]).strip().splitlines()
    assert starts[0].endswith("zone-c"), "what was written in the lost zone is there"
    assert starts[-1].split()[0] in orders_line


@pytest.mark.parametrize("block", DOCS, ids=[block.location for block in DOCS])
def test_commands_in_the_docs_succeed(tour: Lab, block: Block, tmp_path: Path) -> None:
    run_commands(tour, block.commands, tmp_path)


def test_shop_is_served_after_uninstall(tour: Lab) -> None:
    assert "zonewise" in rules(tour)
    ready = "kubectl wait node --all --for=condition=Ready --timeout=240s"  # unready nodes keep their rules
    run_commands(tour, [ready, "zonewise uninstall --yes"])
    assert "zonewise" not in rules(tour)
    until_in_zone(tour, lambda share: share < 0.6)


def rules(lab: Lab) -> str:
    """nftables tables of all nodes."""
    lab_nodes = nodes.plan_of(lab).nodes
    return "".join(namespaces.run(namespaces.command(node.namespace, ["nft", "list", "tables"])) for node in lab_nodes)


def test_down_leaves_nothing(tour: Lab, before: Before) -> None:
    started = [*processes.recorded(tour.directory)]
    assert namespaces.pids_in(namespaces.of_lab(tour.name))
    assert "dashboard" in {process.name for process in started}
    labs.down(tour.name, lambda _step: None)
    assert not any(process.running for process in started)
    assert list(footprint.processes([tour.name])) == []
    assert footprint.mounts([tour.name], tour.directory) == []
    assert namespaces.of_lab(tour.name) == []
    assert not any((hierarchy.path / lab_cgroup(tour.name)).exists() for hierarchy in cgroups.known())
    assert footprint.orphans() <= before.orphans
    assert footprint.settings() == before.settings
    assert state.find(tour.name) is None
    assert not tour.directory.exists()
    assert slots.held(tour.directory) is None
    until(lambda: footprint.dead_loop_devices() <= before.dead_devices)
