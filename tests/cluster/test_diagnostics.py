"""plan, explain, status and doctor on a live cluster: what they say of a dump, and one line where they may not look."""

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
from unit.cli.test_errors import QUESTIONS
from zonewise.cli.main import cli, main
from zonewise.lab.controlplane.controlplane import ControlPlane

SHOP = Path(__file__).parents[2] / "docs" / "examples" / "shop.yaml"
BUDGETS = Path(__file__).parents[2] / "deploy" / "tdb.yaml"
PATHS = {
    "Node": "/api/v1/nodes",
    "Service": "/api/v1/namespaces/shop/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
}


def _knows_budgets(plane: ControlPlane) -> bool:
    groups = plane.request("GET", "/apis")["groups"]
    return any(group["name"] == "zonewise.dev" for group in groups)


@pytest.fixture(scope="module")
def shop(run_directory: Run) -> Iterator[ControlPlane]:
    """An API server that knows what stands in the dump, and nothing else."""
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
    wait_for(lambda: _knows_budgets(plane))
    pod = {"metadata": {"name": "client"}, "spec": {"nodeName": "eu-1c-0", "containers": [{"name": "c", "image": "i"}]}}
    plane.request("POST", "/api/v1/namespaces/shop/pods", pod)
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "data"}, "spec": {**asked, "storageClassName": "none"}}
    plane.request("POST", "/api/v1/namespaces/shop/persistentvolumeclaims", claim)
    yield plane
    run_directory.remove(plane)


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(shop: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Say:
    """Exit code, stdout and stderr of a command on that cluster."""

    def run(words: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
        structlog.reset_defaults()  # a command that ends logs as it does for people, not as tests want it
        where = [] if " -f " in words else ["--kubeconfig", str(kubeconfig or shop.kubeconfig)]
        with pytest.raises(SystemExit) as left:
            main([*words.split(), *where])
        shown = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, shown.out, shown.err

    return run


def read(text: str) -> Any:
    return json.loads(text)


@pytest.mark.parametrize(
    "change", ["", "--lose-zone eu-1a", "--set same-zone=Prefer -n shop", "--replicas shop/cart=12"]
)
def test_a_live_plan_is_that_of_a_dump(say: Say, change: str) -> None:
    """But for what the API server itself brings along."""
    code, live, _ = say(f"plan {change} -o json" if "-n" in change else f"plan -n shop {change} -o json")
    _, dumped, _ = say(f"plan -n shop {change} -o json -f {SHOP}".replace("-n shop -n shop", "-n shop"))
    assert code == 0
    assert read(live) == read(dumped)
    assert {row["today"]["outlook"]["name"] for row in read(live)["rows"]} == {"cart", "db", "web"}


@pytest.mark.parametrize("words", ["explain service shop/db", "explain service shop/cart --from-node eu-1b-0"])
def test_explain_says_the_same_live_and_of_a_dump(say: Say, words: str) -> None:
    live, dumped = say(f"{words} -o json"), say(f"{words} -o json -f {SHOP}")
    assert live[0] == dumped[0] == 0
    assert read(live[1]) == read(dumped[1])


def test_a_pod_is_where_it_runs(say: Say) -> None:
    code, out, _ = say("explain service shop/db --from-pod client --all-services -o json")
    found = read(out)
    assert (code, found["client"], found["verdict"]) == (
        1,
        "pod shop/client on node eu-1c-0",
        "reaches none of 2 endpoints",
    )


def test_status_and_doctor_of_a_cluster_without_zonewise(say: Say) -> None:
    code, out, _ = say("status -o json")
    found = read(out)
    assert (code, found["installed"], found["unread"]) == (1, False, [])
    assert {zone["name"]: zone["nodes"] for zone in found["zones"]} == {"eu-1a": 2, "eu-1b": 2, "eu-1c": 3}
    assert [trouble["code"] for trouble in found["troubles"]] == ["ServicesNotInForce"]
    assert found["traffic"]["problem"] == ""
    assert read(say("status --no-traffic -o json")[1])["traffic"]["problem"] == "not asked for"
    code, out, _ = say("doctor -o json")
    by_code = {finding["code"]: finding for finding in read(out)["findings"]}
    assert (code, "CutOff" in by_code) == (0, False), "kube-proxy carries them all, and cuts nobody off"
    assert {"Server", "Clock", "Labels", "InstallRights", "NotInstalled", "NotInForce", "NeedsProxy"} <= by_code.keys()
    assert by_code["Clock"]["level"] == by_code["InstallRights"]["level"] == "Fine"


def test_what_runs_is_seen_and_what_it_may_not_do(shop: ControlPlane, say: Say) -> None:
    labels = {"app.kubernetes.io/name": "zonewise-dns"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {
        "metadata": {"name": "zonewise-dns", "labels": labels},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    path = "/apis/apps/v1/namespaces/shop/deployments"
    shop.request("POST", path, body)
    try:
        found = read(say("status -o json")[1])
        assert [(component["name"], component["wanted"], component["ready"]) for component in found["components"]] == [
            ("zonewise-dns", 2, 0)
        ]
        assert found["troubles"][0]["code"] == "ComponentNotReady"
        (right,) = [
            finding for finding in read(say("doctor -o json")[1])["findings"] if finding["code"] == "ComponentRights"
        ]
        assert (right["level"], "watch nodes" in right["objects"]) == ("Wrong", True)
    finally:
        shop.request("DELETE", f"{path}/zonewise-dns")


@pytest.fixture(scope="module")
def reader(shop: ControlPlane) -> Path:
    """Who may read what routing depends on, and no workloads."""
    kinds = {"": ["nodes", "namespaces", "services"], "discovery.k8s.io": ["endpointslices"]}
    rules = [{"apiGroups": [group], "resources": plurals, "verbs": ["get", "list"]} for group, plurals in kinds.items()]
    path, role = "/apis/rbac.authorization.k8s.io/v1", {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    shop.request("POST", f"{path}/clusterroles", {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": {**role, "name": "reader"}, "subjects": [subject]}
    shop.request("POST", f"{path}/clusterrolebindings", binding)
    return shop.add_user("reader", "reader")


def test_a_proxy_in_kube_proxys_place_is_seen_by_every_command(shop: ControlPlane, reader: Path, say: Say) -> None:
    labels = {"app.kubernetes.io/name": "zonewise-proxy"}
    container = {"name": "c", "image": "i", "args": ["proxy", "--all-services"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    metadata = {"name": "zonewise-proxy", "labels": labels}
    path = "/apis/apps/v1/namespaces/shop/daemonsets"
    spec = {"selector": {"matchLabels": labels}, "template": template}
    shop.request("POST", path, {"metadata": metadata, "spec": spec})

    def told(kubeconfig: Path | None = None) -> tuple[list[str], int, str]:
        """Whom plan says to be cut off, and what explain says."""
        rows = read(say("plan -n shop -o json", kubeconfig)[1])["rows"]
        (cut_off,) = [row["today"]["outlook"]["cutOff"] for row in rows if row["today"]["outlook"]["name"] == "db"]
        code, out, _ = say("explain service shop/db -o json", kubeconfig)
        return cut_off, code, read(out)["carrier"]

    try:
        assert told() == (["eu-1c-0", "eu-1c-1", "eu-1c-2"], 1, "ZonewiseProxy")
        assert "ServicesCutOff" in {trouble["code"] for trouble in read(say("status -o json")[1])["troubles"]}
        assert told(reader) == ([], 0, "KubeProxy"), "who may not look takes it for kube-proxy, and is answered"
    finally:
        shop.request("DELETE", f"{path}/zonewise-proxy")


ACCOUNTS = {
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


@pytest.mark.parametrize("name", ACCOUNTS)
def test_json_is_what_its_schema_says(say: Say, name: str) -> None:
    _, out, err = say(f"{ACCOUNTS[name]} -o json")
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


@pytest.mark.parametrize("words", WRONG_NAMES)
def test_wrong_names_are_one_line(say: Say, words: str) -> None:
    code, out, err = say(words)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert WRONG_NAMES[words] in err


@pytest.mark.parametrize("words", BAD_VALUES)
def test_an_unreadable_question_is_one_line(say: Say, words: str) -> None:
    code, out, err = say(words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert BAD_VALUES[words] in err


def test_a_name_that_no_service_has_is_no_answer(say: Say) -> None:
    assert say("explain dns web.shop")[0] == 0
    code, out, _ = say("explain dns nope.shop")
    assert (code, "there is no Service shop/nope; other servers are asked" in out) == (1, True)
    assert say("explain dns example.com")[0] == 0


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
    """And silently by none where it is away."""
    *words, begun = line.split(" ")
    monkeypatch.setenv("KUBECONFIG", str(shop.kubeconfig))
    assert _completed(words, begun) == COMPLETED[line]
    monkeypatch.setenv("KUBECONFIG", "/dev/null/none")
    assert _completed(words, begun) == []


def _completed(words: list[str], begun: str) -> list[str]:
    return [found.value for found in ShellComplete(cli, {}, "zonewise", "").get_completions(words, begun)]


@pytest.fixture(scope="module")
def stranger(shop: ControlPlane) -> Path:
    return shop.add_user("stranger", "stranger")


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_forbidden_is_one_line(say: Say, stranger: Path, name: str) -> None:
    code, out, err = say(" ".join([name, *QUESTIONS[name]]), stranger)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert "forbidden" in err
    assert "stranger" in err
