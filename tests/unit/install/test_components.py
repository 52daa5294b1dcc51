"""What is installed: which manifests, with which words replaced, and that they keep what they promise."""

from __future__ import annotations

from typing import Any

import click
import pytest
import yaml

from zonewise.cli.main import cli
from zonewise.errors import UsageError
from zonewise.install import components, remove
from zonewise.install.components import DEFAULT, InstallComponent, InstallMode, ManifestValues, documents
from zonewise.install.decide.document import identity
from zonewise.install.decide.kinds import BY_KIND, rank

PLAIN = ManifestValues(image="zonewise")
FORMS = [
    (InstallComponent.SLICES, InstallMode.OWN),
    *((component, InstallMode.OVERLAY) for component in InstallComponent),
]
WORKLOADS = {"Deployment", "DaemonSet"}
Json = dict[str, Any]


def every_document() -> list[Json]:
    return [document for component, mode in FORMS for document in documents([component], mode, PLAIN)]


def pod_spec(workload: Json) -> Json:
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def test_names_choose_in_the_order_of_installation() -> None:
    assert components.choose([]) == DEFAULT
    assert components.choose(["proxy", "slices"]) == (InstallComponent.SLICES, InstallComponent.PROXY)
    with pytest.raises(UsageError, match="no component 'prxy': write one or more of slices,"):
        components.choose(["prxy"])
    with pytest.raises(UsageError, match="dns and dns-node do the same work"):
        components.choose(["dns-node", "dns"])


def test_placeholders_are_replaced_everywhere() -> None:
    values = ManifestValues(
        image="registry.example.com:5000/z@sha256:0", namespace="here", replicas=3, api_server=("::1", 7)
    )
    for component, mode in FORMS:
        text = components.text([component], mode, values)
        assert "zonewise-system" not in text
        assert "api.example.com" not in text
        for document in yaml.safe_load_all(text):
            if document["kind"] in WORKLOADS:
                spec = pod_spec(document)
                images = {each["image"] for each in (*spec.get("initContainers", ()), *spec["containers"])}
                assert {image for image in images if "sig-storage" not in image} == {values.image}
            if document["kind"] == "Deployment":
                assert document["spec"]["replicas"] == 3


def test_programs_look_where_they_are_installed() -> None:
    """A flag that is not given means our own namespace."""
    for component, mode in FORMS:
        for document in documents([component], mode, ManifestValues(image="zonewise", namespace="here")):
            if document["kind"] in WORKLOADS:
                for container in pod_spec(document)["containers"]:
                    if container["image"] == "zonewise":
                        said = flags(container["args"])
                        elsewhere = {name: value for name, value in said.items() if "zonewise-system" in str(value)}
                        assert not elsewhere, document["metadata"]["name"]


def flags(arguments: list[str]) -> Json:
    """What a program makes of its arguments, with the defaults of those that were left out."""
    command: click.Command = cli
    left = list(arguments)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), left.pop(0)) or pytest.fail(f"no such: {arguments}")
    return command.make_context("program", left).params


def test_what_is_printed_is_what_is_applied() -> None:
    for mode in InstallMode:
        printed = list(yaml.safe_load_all(components.text(DEFAULT, mode, PLAIN)))
        assert printed == documents(DEFAULT, mode, PLAIN)
        assert len({identity(document) for document in printed}) == len(printed)


def test_the_other_mode_is_superseded() -> None:
    gone = {identity(document) for document in components.superseded(DEFAULT, InstallMode.OVERLAY, PLAIN)}
    kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    local = ("ServiceAccount", "Role", "RoleBinding")
    assert gone == {(kind, "", "zonewise-controller") for kind in kinds} | {
        (kind, "zonewise-system", "zonewise-controller") for kind in local
    }
    assert ("MutatingWebhookConfiguration", "", "zonewise-overlay") in {
        identity(document) for document in components.superseded(DEFAULT, InstallMode.OWN, PLAIN)
    }
    assert components.superseded([InstallComponent.PROXY], InstallMode.OWN, PLAIN) == []


def test_another_way_to_do_the_same_work_is_superseded() -> None:
    def gone(chosen: InstallComponent) -> set[tuple[str, str, str]]:
        return {identity(document) for document in components.superseded([chosen], InstallMode.OVERLAY, PLAIN)}

    behind, beside, node = (
        gone(InstallComponent.DNS_BEHIND),
        gone(InstallComponent.DNS),
        gone(InstallComponent.DNS_NODE),
    )
    assert ("DaemonSet", "zonewise-system", "zonewise-dns") in behind & beside
    assert ("Deployment", "kube-system", "zonewise-dns") in behind & node
    assert ("Deployment", "zonewise-system", "zonewise-dns") in beside & node
    assert gone(InstallComponent.PROXY) == gone(InstallComponent.PROXY_ALL) == set(), "these differ in arguments alone"


@pytest.mark.parametrize(("component", "mode"), FORMS)
def test_nothing_that_others_need_is_superseded(component: InstallComponent, mode: InstallMode) -> None:
    gone = {identity(document) for document in components.superseded([component], mode, PLAIN)}
    kind = next((group for group in components._EITHER if component in group), {component})
    for other in set(InstallComponent) - kind:
        assert not gone & {identity(document) for document in components.everything([other], PLAIN)}, other


def test_every_kind_is_known_and_has_its_place() -> None:
    for document in every_document():
        assert BY_KIND[document["kind"]].api_version == document["apiVersion"]
        assert bool(document["metadata"].get("namespace")) == BY_KIND[document["kind"]].namespaced
        assert rank(document) >= 0
    assert {kind: resource.plural for kind, resource in BY_KIND.items() if resource.plural != f"{kind.lower()}s"} == {
        "StorageClass": "storageclasses",
        "NetworkPolicy": "networkpolicies",
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    }


def test_accounts_are_limited_before_they_get_rights_and_until_they_lost_them() -> None:
    order = [document["metadata"]["name"] for document in sorted(every_document(), key=rank) if _is_policy(document)]
    assert order[-1] == "zonewise-deletes", "its parameters are budgets, which must be there"
    limits = [document for document in every_document() if _is_policy(document)]
    grants = [document for document in every_document() if document["kind"].endswith("RoleBinding")]
    assert all(
        rank(limit) < rank(grant)
        for limit in limits
        for grant in grants
        if limit["metadata"]["name"] != "zonewise-deletes"
    )


def _is_policy(document: dict[str, Any]) -> bool:
    return bool(document["kind"].startswith("ValidatingAdmissionPolicy"))


PROGRAMS = {
    f"{component}-{mode}-{document['metadata']['name']}": document
    for component, mode in FORMS
    for document in documents([component], mode, PLAIN)
    if document["kind"] in WORKLOADS
}


@pytest.mark.parametrize("workload", PROGRAMS.values(), ids=PROGRAMS)
def test_probes_go_to_the_health_port_and_metrics_have_one_of_their_own(workload: Json) -> None:
    (program,) = [each for each in pod_spec(workload)["containers"] if each["image"] == "zonewise"]
    ports = {port["name"]: port["containerPort"] for port in program["ports"]}
    said = flags(program["args"])
    assert (ports["health"], ports["https-metrics"]) == (said["health_port"], said["metrics_port"])
    assert list(ports.values()).count(ports["https-metrics"]) == 1
    probes = [probe for name, probe in program.items() if name.endswith("Probe")]
    assert probes
    assert {probe["httpGet"]["port"] for probe in probes} == {"health"}


@pytest.mark.parametrize("component", InstallComponent)
def test_one_component_is_removed_without_the_right_that_all_share(component: InstallComponent) -> None:
    reader = ("ClusterRole", "", "zonewise-metrics-reader")
    assert reader in {identity(document) for document in documents([component], InstallMode.OVERLAY, PLAIN)}
    assert reader not in {identity(document) for document in components.everything([component], PLAIN)}
    assert reader in {identity(document) for document in components.everything(InstallComponent, PLAIN)}


@pytest.mark.parametrize("workload", PROGRAMS.values(), ids=PROGRAMS)
def test_a_cluster_admin_has_all_rights(workload: Json) -> None:
    """Our images run as another user, whose privileged containers have no capability in effect."""
    spec = pod_spec(workload)
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        security = spec.get("securityContext", {}) | container.get("securityContext", {})
        assert security.get("runAsUser") == 0 or not security.get("privileged"), container["name"]


@pytest.mark.parametrize("workload", PROGRAMS.values(), ids=PROGRAMS)
def test_workloads_are_fit_for_production(workload: Json) -> None:
    spec = pod_spec(workload)
    container = spec["containers"][0]
    named = workload["metadata"]["name"]
    assert named == "zonewise-dashboard" or spec["priorityClassName"].startswith("system-")
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 60, "a first start on a busy node takes its time"
    assert container["readinessProbe"]["periodSeconds"] <= 2, "a rollout waits for it"
    assert container["resources"]["requests"]
    security = spec.get("securityContext", {}) | container["securityContext"]
    if named == "zonewise-csi-node":  # maps devices for others: it can't do with less
        assert security == {"runAsUser": 0, "runAsNonRoot": False, "privileged": True}
        return
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    if workload["kind"] == "Deployment":
        assert workload["spec"]["replicas"] == 2
        keys = {
            topologyspreadconstraint["topologyKey"] for topologyspreadconstraint in spec["topologySpreadConstraints"]
        }
        assert keys == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}


@pytest.mark.parametrize(("component", "mode"), FORMS)
def test_deployments_have_a_budget_and_every_pod_a_policy(component: InstallComponent, mode: InstallMode) -> None:
    found = documents([component], mode, PLAIN)

    def selected(kind: str, *path: str) -> list[Json]:
        chosen = []
        for document in found:
            if document["kind"] == kind:
                value = document["spec"]
                for key in path:
                    value = value[key]
                chosen.append(value["matchLabels"])
        return chosen

    for document in found:
        if document["kind"] in WORKLOADS and not pod_spec(document).get("hostNetwork"):
            labels = document["spec"]["selector"]["matchLabels"]
            assert labels in selected("NetworkPolicy", "podSelector")
            assert document["kind"] == "DaemonSet" or labels in selected("PodDisruptionBudget", "selector")


@pytest.mark.parametrize(("component", "mode"), FORMS)
def test_network_policies_admit_everybody_to_the_ports_that_pods_serve(
    component: InstallComponent, mode: InstallMode
) -> None:
    found = documents([component], mode, PLAIN)
    served = {
        document["metadata"]["name"]: {
            (port["name"], port.get("protocol", "TCP"))
            for container in pod_spec(document)["containers"]
            for port in container.get("ports", ())
        }
        for document in found
        if document["kind"] in WORKLOADS
    }
    for policy in (document for document in found if document["kind"] == "NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        (rule,) = policy["spec"]["ingress"]
        assert rule.keys() == {"ports"}
        admitted = {(port["port"], port.get("protocol", "TCP")) for port in rule["ports"]}
        assert admitted == served[policy["metadata"]["name"]]


def test_no_right_is_given_without_naming_it() -> None:
    for document in every_document():
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert not any("*" in word for words in rule.values() for word in words)


def test_the_last_pods_on_nodes_clean_up_with_the_rights_of_the_proxy() -> None:
    (proxy,) = [
        document
        for document in documents([InstallComponent.PROXY], InstallMode.OVERLAY, PLAIN)
        if document["kind"] == "DaemonSet"
    ]
    spec = pod_spec(remove.cleaning(proxy))
    assert spec["hostNetwork"] is True
    assert spec["tolerations"] == [{"operator": "Exists"}]
    (cleanup,) = spec["initContainers"]
    assert cleanup["args"] == ["proxy", "--cleanup"]
    assert cleanup["securityContext"]["capabilities"]["add"] == ["NET_ADMIN"]


def test_no_last_pod_is_made_for_nodes_that_are_away() -> None:
    (proxy,) = [
        document
        for document in documents([InstallComponent.PROXY], InstallMode.OVERLAY, PLAIN)
        if document["kind"] == "DaemonSet"
    ]
    required, linux = "requiredDuringSchedulingIgnoredDuringExecution", {"matchExpressions": [{"key": "linux"}]}
    pod_spec(proxy)["affinity"] = {"nodeAffinity": {required: {"nodeSelectorTerms": [linux]}}, "podAffinity": {}}
    assert pod_spec(remove.cleaning(proxy))["affinity"] == pod_spec(proxy)["affinity"]
    affinity = pod_spec(remove.cleaning(proxy, ["a", "b"]))["affinity"]
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("a", "b")]
    assert affinity["nodeAffinity"][required]["nodeSelectorTerms"] == [linux | {"matchFields": others}]
    assert "podAffinity" in affinity


@pytest.mark.parametrize("component", [InstallComponent.DNS, InstallComponent.DNS_BEHIND])
def test_dns_server_serves_until_proxies_know_that_it_is_not_ready(component: InstallComponent) -> None:
    """UDP flows outlive a server: kube-proxy deletes them when its endpoint no longer serves."""
    (deployment,) = (one for one in documents([component], InstallMode.OVERLAY, PLAIN) if one["kind"] == "Deployment")
    (container,) = pod_spec(deployment)["containers"]
    probe, command = container["readinessProbe"], cli.get_command(click.Context(cli), "dns")
    assert command is not None
    (lameduck,) = (option.default for option in command.params if option.name == "lameduck_seconds")
    assert not any("lameduck" in word for word in container["args"])
    assert probe["periodSeconds"] * probe.get("failureThreshold", 3) + 5 <= lameduck
    assert lameduck + 5 <= pod_spec(deployment).get("terminationGracePeriodSeconds", 30)
