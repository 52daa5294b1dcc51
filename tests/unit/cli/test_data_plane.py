"""Who carries Services is read from a dump by every command alike, and a flag says otherwise."""

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


def workload(kind: str, name: str, *words: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "zonewise-system", "labels": {"app.kubernetes.io/name": name}},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "args": [*words]}]}}},
    }


@pytest.fixture
def dump(tmp_path: Path) -> str:
    """The shop, where our proxy runs in kube-proxy's place and our DNS server answers; `db` also as a headless Service."""
    objects = yaml.safe_load(SHOP.read_text())
    for item in [each for each in objects["items"] if each["metadata"]["name"].startswith("db")]:
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


def run(dump: str, *words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(cli, [*words, "-f", dump, "-o", "json"])
    return done.exit_code, json.loads(done.output)


def planned(dump: str, name: str, *words: str) -> list[str]:
    """Nodes that are cut off."""
    found: dict[str, list[str]] = {
        row["today"]["outlook"]["name"]: row["today"]["outlook"]["cutOff"]
        for row in run(dump, "plan", *words)[1]["rows"]
    }
    return found[name]


@pytest.mark.parametrize(("name", "stock"), [("db", "--no-all-services"), ("pods", "--stock-dns")])
def test_plan_explain_and_status_agree_on_who_is_cut_off(dump: str, name: str, stock: str) -> None:
    service = f"shop/{name}"
    assert planned(dump, name) == CUT_OFF
    code, found = run(dump, "explain", "service", service)
    assert (code, found["verdict"]) == (1, "clients in eu-1c reach no endpoint")
    states = {each["outlook"]["name"]: each["state"] for each in run(dump, "status")[1]["services"]}
    assert states[name] == "CutOff"
    assert planned(dump, name, stock) == []
    code, found = run(dump, "explain", "service", service, stock)
    assert (code, "reach no endpoint" in found["verdict"]) == (0, False)
    assert planned(str(SHOP), "db", "--all-services") == CUT_OFF


def test_a_plan_of_changes_only_has_no_other_rows(dump: str) -> None:
    found = run(dump, "plan", "--replicas", "cart=7", "--changed-only")[1]
    assert [row["today"]["outlook"]["name"] for row in found["rows"]] == ["cart"]
    assert found["today"]["services"] == 4, "totals are of all"


def test_what_a_dump_has_no_traffic_for_is_not_said_to_be_missing(dump: str) -> None:
    done = CliRunner().invoke(cli, ["status", "-f", dump])
    assert "not measured: a dump has none" in done.output


@pytest.mark.parametrize("words", [["status"], ["doctor"], ["explain", "service", "shop/web"], ["plan"]])
def test_hints_are_computed_as_the_controller_is_told(tmp_path: Path, words: list[str]) -> None:
    """Nine endpoints are enough for stable hints, and too few for strict ones."""
    objects = yaml.safe_load(SHOP.read_text())
    for item in objects["items"]:
        if item["kind"] == "EndpointSlice" and item["metadata"]["name"].startswith("web"):
            item["endpoints"] = item["endpoints"][:9]
        if item["kind"] == "Service" and item["metadata"]["name"] == "web":
            item["metadata"]["annotations"] = {"service.kubernetes.io/topology-mode": "Auto"}
    file = tmp_path / "auto.yaml"
    file.write_text(yaml.safe_dump(objects))

    def said(form: str) -> Any:
        found = run(str(file), *words, "--hints", form)[1]
        return {key: value for key, value in found.items() if key != "at"}

    assert said("stable") != said("strict")
