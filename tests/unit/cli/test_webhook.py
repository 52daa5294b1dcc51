"""`zonewise webhook` without a cluster: printed objects and usage errors."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from zonewise.cli.webhook import webhook
from zonewise.errors import UsageError
from zonewise.kube.wire.errors import ConfigError


def printed(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(webhook, [*arguments, "--print"], catch_exceptions=False)
    assert done.exit_code == 0
    (registered,) = yaml.safe_load(done.output)["webhooks"]
    return dict(registered)


def test_overlay_webhook_ignores_failures() -> None:
    registered = printed("--url", "https://10.0.0.5:8443")
    assert registered["clientConfig"] == {"url": "https://10.0.0.5:8443/endpointslices"}
    assert (registered["failurePolicy"], registered["sideEffects"]) == ("Ignore", "None")
    assert registered["timeoutSeconds"] == 2
    stock = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
    assert registered["objectSelector"] == {"matchLabels": stock}


def test_service_flag_sets_the_client_config() -> None:
    """Without a path, which has the callers' key: an apply must not reset it."""
    reference = {"namespace": "ours", "name": "hook", "port": 443}
    assert printed("--service", "ours/hook")["clientConfig"] == {"service": reference}


def test_disruption_part_prints_policy_binding_and_webhooks() -> None:
    arguments = ["--parts", "disruption", "--url", "https://10.0.0.5:8443", "--print"]
    done = CliRunner().invoke(webhook, arguments, catch_exceptions=False)
    policy, binding, mutating, validating = yaml.safe_load_all(done.output)
    assert policy["metadata"] == binding["metadata"] == {"name": "zonewise-deletes"}
    assert (mutating["kind"], validating["kind"]) == ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    (evictions,), (deletes,) = mutating["webhooks"], validating["webhooks"]
    assert (evictions["failurePolicy"], deletes["failurePolicy"]) == ("Fail", "Ignore")
    assert evictions["clientConfig"] == {"url": "https://10.0.0.5:8443/evictions"}
    assert evictions["sideEffects"] == deletes["sideEffects"] == "NoneOnDryRun"


def test_unknown_parts_are_refused() -> None:
    done = CliRunner().invoke(webhook, ["--parts", "overlay,evictions", "--url", "https://h:1"])
    assert done.exit_code == 2
    assert "unknown part 'evictions'; write one or more of overlay, disruption" in done.output


REJECTED = {
    "neither": ([], "either --service NAMESPACE/NAME or --url URL"),
    "both": (["--service", "a/b", "--url", "https://h:1"], "either --service NAMESPACE/NAME or --url URL"),
    "no namespace": (["--service", "hook"], "--service hook: write a namespace and a name"),
    "too many names": (["--service", "a/b/c"], "--service a/b/c: write a namespace and a name"),
    "not https": (["--url", "http://h:1"], "--url http://h:1: write https, a host and a port"),
    "a path": (["--url", "https://h:1/x"], "write https, a host and a port"),
    "no port number": (["--url", "https://h:port"], "--url https://h:port"),
    "a secret without a namespace": (["--url", "https://h:1", "--secret", "x"], "--secret x: write a namespace"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_invalid_flags_are_refused(name: str) -> None:
    arguments, message = REJECTED[name]
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(webhook, arguments, catch_exceptions=False)
    assert message in str(refused.value)


def test_missing_kubeconfig_is_refused_before_start(tmp_path: Path) -> None:
    arguments = ["--url", "https://h:1", "--kubeconfig", str(tmp_path / "none")]
    with pytest.raises(ConfigError, match="cannot be read"):
        CliRunner().invoke(webhook, arguments, catch_exceptions=False)
