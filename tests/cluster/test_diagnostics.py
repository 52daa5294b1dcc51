"""plan, explain, status and doctor on a live cluster: agreement with a dump, and one-line errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from click.shell_completion import ShellComplete

from support.cli.output import described
from support.lab.shared_cluster import Run
from support.process import wait_for
from unit.cli.test_errors import CLUSTER_COMMANDS
from zonewise.cli.main import cli, main
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("diagnostics")  # one control plane for all of them

SHOP = Path(__file__).parents[2] / "docs" / "examples" / "shop.yaml"
BUDGETS = Path(__file__).parents[2] / "deploy" / "tdb.yaml"
PATHS = {
    "Node": "/api/v1/nodes",
    "Service": "/api/v1/namespaces/shop/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
}


def _budgets_defined(plane: ControlPlane) -> bool:
    groups = plane.request("GET", "/apis")["groups"]
    return any(group["name"] == "zonewise.dev" for group in groups)


@pytest.fixture(scope="module")
def shop(run_directory: Run) -> Iterator[ControlPlane]:
    """An API server with the objects of the dump."""
    plane = run_directory.private()
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    plane.request("POST", "/api/v1/namespaces/shop/serviceaccounts", {"metadata": {"name": "default"}})
    for item in yaml.safe_load(SHOP.read_text())["items"]:
        if item["kind"] == "Service":
            for field in ("clusterIP", "clusterIPs"):  # from this server's own range
                item["spec"].pop(field, None)
        if item["kind"] in PATHS:
            plane.request("POST", PATHS[item["kind"]], item)
        if item["kind"] == "Node":
            plane.request("PATCH", f"/api/v1/nodes/{item['metadata']['name']}/status", {"status": item["status"]})
    plane.request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(BUDGETS.read_text())
    )
    wait_for(lambda: _budgets_defined(plane))
    pod = {"metadata": {"name": "client"}, "spec": {"nodeName": "eu-1c-0", "containers": [{"name": "c", "image": "i"}]}}
    plane.request("POST", "/api/v1/namespaces/shop/pods", pod)
    request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "data"}, "spec": {**request, "storageClassName": "none"}}
    plane.request("POST", "/api/v1/namespaces/shop/persistentvolumeclaims", claim)
    yield plane
    run_directory.remove(plane)


RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_command(shop: ControlPlane, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Exit code, stdout and stderr of a command on that cluster."""

    def run(command: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
        structlog.reset_defaults()  # commands configure logging themselves
        where = [] if " -f " in command else ["--kubeconfig", str(kubeconfig or shop.kubeconfig)]
        with pytest.raises(SystemExit) as exited:
            main([*command.split(), *where])
        shown = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return exited.value.code, shown.out, shown.err

    return run


def parse(text: str) -> Any:
    return json.loads(text)


@pytest.mark.parametrize(
    "change", ["", "--lose-zone eu-1a", "--set same-zone=Prefer -n shop", "--replicas shop/cart=12"]
)
def test_a_live_plan_equals_the_plan_of_a_dump(run_command: RunCommand, change: str) -> None:
    """Except for objects that the API server creates."""
    code, live, _ = run_command(f"plan {change} -o json" if "-n" in change else f"plan -n shop {change} -o json")
    _, from_dump, _ = run_command(f"plan -n shop {change} -o json -f {SHOP}".replace("-n shop -n shop", "-n shop"))
    assert code == 0
    assert parse(live) == parse(from_dump)
    assert {row["today"]["outlook"]["name"] for row in parse(live)["rows"]} == {"cart", "db", "web"}


@pytest.mark.parametrize("command", ["explain service shop/db", "explain service shop/cart --from-node eu-1b-0"])
def test_explain_service_agrees_live_and_on_a_dump(run_command: RunCommand, command: str) -> None:
    live, from_dump = run_command(f"{command} -o json"), run_command(f"{command} -o json -f {SHOP}")
    assert live[0] == from_dump[0] == 0
    assert parse(live[1]) == parse(from_dump[1])


def test_a_client_pod_is_located_by_its_node(run_command: RunCommand) -> None:
    code, out, _ = run_command("explain service shop/db --from-pod client --all-services -o json")
    report = parse(out)
    assert (code, report["client"], report["verdict"]) == (
        1,
        "pod shop/client on node eu-1c-0",
        "reaches none of 2 endpoints",
    )


def test_status_and_doctor_of_a_cluster_without_zonewise(run_command: RunCommand) -> None:
    code, out, _ = run_command("status -o json")
    report = parse(out)
    assert (code, report["installed"], report["unread"]) == (1, False, [])
    assert {zone["name"]: zone["nodes"] for zone in report["zones"]} == {"eu-1a": 2, "eu-1b": 2, "eu-1c": 3}
    assert [trouble["code"] for trouble in report["troubles"]] == ["ServicesNotInForce"]
    assert report["traffic"]["problem"] == ""
    assert parse(run_command("status --no-traffic -o json")[1])["traffic"]["problem"] == "not asked for"
    code, out, _ = run_command("doctor -o json")
    by_code = {finding["code"]: finding for finding in parse(out)["findings"]}
    assert (code, "CutOff" in by_code) == (0, False), "kube-proxy serves them all, and cuts no client off"
    assert {"Server", "Clock", "Labels", "InstallRights", "NotInstalled", "NotInForce", "NeedsProxy"} <= by_code.keys()
    assert by_code["Clock"]["level"] == by_code["InstallRights"]["level"] == "Fine"


def test_components_and_their_missing_rights_are_found(shop: ControlPlane, run_command: RunCommand) -> None:
    labels = {"app.kubernetes.io/name": "zonewise-dns"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {
        "metadata": {"name": "zonewise-dns", "labels": labels},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    path = "/apis/apps/v1/namespaces/shop/deployments"
    shop.request("POST", path, body)
    try:
        report = parse(run_command("status -o json")[1])
        assert [(component["name"], component["wanted"], component["ready"]) for component in report["components"]] == [
            ("zonewise-dns", 2, 0)
        ]
        assert report["troubles"][0]["code"] == "ComponentNotReady"
        (right,) = [
            finding
            for finding in parse(run_command("doctor -o json")[1])["findings"]
            if finding["code"] == "ComponentRights"
        ]
        assert (right["level"], "watch nodes" in right["objects"]) == ("Wrong", True)
    finally:
        shop.request("DELETE", f"{path}/zonewise-dns")


@pytest.fixture(scope="module")
def routing_reader(shop: ControlPlane) -> Path:
    """A user who may read what routing depends on, but no workloads."""
    kinds = {"": ["nodes", "namespaces", "services"], "discovery.k8s.io": ["endpointslices"]}
    rules = [{"apiGroups": [group], "resources": plurals, "verbs": ["get", "list"]} for group, plurals in kinds.items()]
    path, role = "/apis/rbac.authorization.k8s.io/v1", {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    shop.request("POST", f"{path}/clusterroles", {"metadata": {"name": "routing-reader"}, "rules": rules})
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "routing-reader"}
    binding = {
        "metadata": {"name": "routing-reader"},
        "roleRef": {**role, "name": "routing-reader"},
        "subjects": [subject],
    }
    shop.request("POST", f"{path}/clusterrolebindings", binding)
    return shop.add_user("routing-reader", "routing-reader")


def test_every_command_detects_a_proxy_for_all_services(
    shop: ControlPlane, routing_reader: Path, run_command: RunCommand
) -> None:
    labels = {"app.kubernetes.io/name": "zonewise-proxy"}
    container = {"name": "c", "image": "i", "args": ["proxy", "--all-services"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    metadata = {"name": "zonewise-proxy", "labels": labels}
    path = "/apis/apps/v1/namespaces/shop/daemonsets"
    spec = {"selector": {"matchLabels": labels}, "template": template}
    shop.request("POST", path, {"metadata": metadata, "spec": spec})

    def outcome(kubeconfig: Path | None = None) -> tuple[list[str], int, str]:
        """Nodes that plan reports as cut off, and the data plane in explain."""
        rows = parse(run_command("plan -n shop -o json", kubeconfig)[1])["rows"]
        (cut_off,) = [row["today"]["outlook"]["cutOff"] for row in rows if row["today"]["outlook"]["name"] == "db"]
        code, out, _ = run_command("explain service shop/db -o json", kubeconfig)
        return cut_off, code, parse(out)["carrier"]

    try:
        assert outcome() == (["eu-1c-0", "eu-1c-1", "eu-1c-2"], 1, "ZonewiseProxy")
        assert "ServicesCutOff" in {problem["code"] for problem in parse(run_command("status -o json")[1])["troubles"]}
        assert outcome(routing_reader) == ([], 0, "KubeProxy"), (
            "without the right to read workloads, kube-proxy is assumed"
        )
    finally:
        shop.request("DELETE", f"{path}/zonewise-proxy")


REPORTS = {
    "doctor": "doctor",
    "drain": "drain --plan eu-1a-0",
    "explain dns": "explain dns web.shop --from-node eu-1a-0",
    "explain eviction": "explain eviction shop/client",
    "explain service": "explain service shop/web",
    "explain volume": "explain volume shop/data",
    "plan": "plan -n shop",
    "simulate": "simulate --from-cluster --algorithms balanced,optimal",
    "status": "status",
}


@pytest.mark.parametrize("name", REPORTS)
def test_json_conforms_to_its_schema(run_command: RunCommand, name: str) -> None:
    _, out, err = run_command(f"{REPORTS[name]} -o json")
    assert out, err
    assert described(name, out)


WRONG_NAMES = {
    "explain service nope": "shop/",
    "explain service shop/crat": "did you mean shop/cart?",
    "explain service shop/cart --from-node eu-1a-9": "no node eu-1a-9; did you mean eu-1a-",
    "explain service shop/cart --from-pod none": "no pod shop/none",
    "explain dns web.shop --from-node none": "no node none",
    "explain volume shop/none": "no claim shop/none",
    "csi giveback zone=none": "there are: none",
    "proxy --explain shop/none --node-name eu-1a-0": "no Service shop/none",
    "explain eviction none -n shop": "none",
    "drain --plan none": "no node none",
    "plan -n none": "no Service",
    "plan --lose-zone none": "no node is in that zone; there is eu-1a, eu-1b, eu-1c",
    "plan --replicas none=3": "no such Service",
    "plan --set same-zone=Prefer -l app=none": "no Service is chosen",
}
BAD_VALUES = {
    "plan --set same-zone=Bogus": "write Balanced, Prefer, Require",
    "plan --set nonsense=1": "is no policy",
    "plan --add-nodes eu-1a=many": "is not a whole number",
    "plan --gb much": "write a number",
    "plan -l !!": "",
    "explain dns web.shop --from-ip nowhere": "is no address",
    "explain service shop/cart --from-node a --from-pod b": "there is one client",
}


@pytest.mark.parametrize("command", WRONG_NAMES)
def test_unknown_names_are_one_line_errors(run_command: RunCommand, command: str) -> None:
    code, out, err = run_command(command)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert WRONG_NAMES[command] in err


@pytest.mark.parametrize("command", BAD_VALUES)
def test_invalid_values_are_one_line_errors(run_command: RunCommand, command: str) -> None:
    code, out, err = run_command(command)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert BAD_VALUES[command] in err


def test_a_dns_name_without_a_service_has_no_answer(run_command: RunCommand) -> None:
    assert run_command("explain dns web.shop")[0] == 0
    code, out, _ = run_command("explain dns nope.shop")
    assert (code, "there is no Service shop/nope; other servers are asked" in out) == (1, True)
    assert run_command("explain dns example.com")[0] == 0


COMPLETED = {
    "explain service shop/": ["shop/cart", "shop/db", "shop/web"],
    "explain service -n shop c": ["cart"],
    "explain service shop/db --from-node eu-1a": ["eu-1a-0", "eu-1a-1"],
    "explain service shop/db --from-pod shop/": ["shop/client"],
    "explain eviction -n shop cl": ["client"],
    "drain --plan eu-1b-0 eu-1b": ["eu-1b-1"],
    "plan -n sh": ["shop"],
    "plan --lose-zone eu": ["eu-1a", "eu-1b", "eu-1c"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_names_are_completed_from_the_cluster(shop: ControlPlane, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And to nothing, without an error, if the cluster is away."""
    *command, begun = line.split(" ")
    monkeypatch.setenv("KUBECONFIG", str(shop.kubeconfig))
    assert _completed(command, begun) == COMPLETED[line]
    monkeypatch.setenv("KUBECONFIG", "/dev/null/none")
    assert _completed(command, begun) == []


def _completed(command: list[str], begun: str) -> list[str]:
    return [item.value for item in ShellComplete(cli, {}, "zonewise", "").get_completions(command, begun)]


@pytest.fixture(scope="module")
def unprivileged(shop: ControlPlane) -> Path:
    return shop.add_user("unprivileged", "unprivileged")


@pytest.mark.parametrize("name", CLUSTER_COMMANDS)
def test_forbidden_commands_are_one_line_errors(run_command: RunCommand, unprivileged: Path, name: str) -> None:
    code, out, err = run_command(" ".join([name, *CLUSTER_COMMANDS[name]]), unprivileged)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert "forbidden" in err
    assert "unprivileged" in err
