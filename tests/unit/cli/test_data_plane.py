"""All commands detect the data plane of Services from a dump in the same way, and flags override it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from zonewise.cli.main import cli

SHOP = Path(__file__).parents[3] / "docs" / "examples" / "shop.yaml"
CUT_OFF = ["eu-1c-0", "eu-1c-1", "eu-1c-2"]


def workload(kind: str, name: str, *arguments: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "zonewise-system", "labels": {"app.kubernetes.io/name": name}},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "args": [*arguments]}]}}},
    }


@pytest.fixture
def dump(tmp_path: Path) -> str:
    """The shop with our proxy instead of kube-proxy and our DNS server; `pods` is `db` as a headless Service."""
    objects = yaml.safe_load(SHOP.read_text())
    for item in [item for item in objects["items"] if item["metadata"]["name"].startswith("db")]:
        twin = json.loads(json.dumps(item).replace('"db', '"pods'))
        if twin["kind"] == "Service":
            twin["spec"]["clusterIP"] = "None"
            twin["spec"].pop("clusterIPs", None)
        objects["items"].append(twin)
    objects["items"] += [
        workload("DaemonSet", "zonewise-proxy", "proxy", "--all-services"),
        workload("Deployment", "zonewise-dns", "dns"),
    ]
    file = tmp_path / "dump.yaml"
    file.write_text(yaml.safe_dump(objects))
    return str(file)


def run(dump: str, *arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(cli, [*arguments, "-f", dump, "-o", "json"])
    return done.exit_code, json.loads(done.output)


def cut_off(dump: str, name: str, *arguments: str) -> list[str]:
    """Nodes that reach no endpoint of the Service."""
    nodes_by_service: dict[str, list[str]] = {
        row["today"]["outlook"]["name"]: row["today"]["outlook"]["cutOff"]
        for row in run(dump, "plan", *arguments)[1]["rows"]
    }
    return nodes_by_service[name]


@pytest.mark.parametrize(("name", "stock"), [("db", "--no-all-services"), ("pods", "--stock-dns")])
def test_plan_explain_and_status_agree_on_cut_off_nodes(dump: str, name: str, stock: str) -> None:
    service = f"shop/{name}"
    assert cut_off(dump, name) == CUT_OFF
    code, report = run(dump, "explain", "service", service)
    assert (code, report["verdict"]) == (1, "clients in eu-1c reach no endpoint")
    states = {row["outlook"]["name"]: row["state"] for row in run(dump, "status")[1]["services"]}
    assert states[name] == "CutOff"
    assert cut_off(dump, name, stock) == []
    code, report = run(dump, "explain", "service", service, stock)
    assert (code, "reach no endpoint" in report["verdict"]) == (0, False)
    assert cut_off(str(SHOP), "db", "--all-services") == CUT_OFF


def test_changed_only_omits_unchanged_services(dump: str) -> None:
    comparison = run(dump, "plan", "--replicas", "cart=7", "--changed-only")[1]
    assert [row["today"]["outlook"]["name"] for row in comparison["rows"]] == ["cart"]
    assert comparison["today"]["services"] == 4, "totals include unchanged Services"


def test_status_of_a_dump_says_that_traffic_is_not_measured(dump: str) -> None:
    done = CliRunner().invoke(cli, ["status", "-f", dump])
    assert "not measured: a dump has none" in done.output


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["explain", "service", "shop/web"], ["plan"]])
def test_hints_flag_changes_the_result(tmp_path: Path, command: list[str]) -> None:
    """Nine endpoints are enough for stable hints, and too few for strict ones."""
    objects = yaml.safe_load(SHOP.read_text())
    for item in objects["items"]:
        if item["kind"] == "EndpointSlice" and item["metadata"]["name"].startswith("web"):
            item["endpoints"] = item["endpoints"][:9]
        if item["kind"] == "Service" and item["metadata"]["name"] == "web":
            item["metadata"]["annotations"] = {"service.kubernetes.io/topology-mode": "Auto"}
    file = tmp_path / "auto.yaml"
    file.write_text(yaml.safe_dump(objects))

    def report(form: str) -> Any:
        fields = run(str(file), *command, "--hints", form)[1]
        return {key: value for key, value in fields.items() if key != "at"}

    assert report("stable") != report("strict")
