"""A control plane that `zonewise install` and `uninstall` are run against."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from zonewise.cli.main import cli
from zonewise.errors import ZonewiseError
from zonewise.install.decide.document import identity
from zonewise.install.decide.kinds import ORDER
from zonewise.install.decide.right import Right
from zonewise.lab.controlplane.controlplane import ControlPlane

CONTROLLERS = (
    "namespace-controller,serviceaccount-controller,garbage-collector-controller,clusterrole-aggregation-controller,"
    "endpointslice-controller,daemonset-controller"
)
SYSTEM = "zonewise-system"


@dataclass(frozen=True)
class Site:
    plane: ControlPlane

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(self.plane.kubeconfig)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def run_ok(self, *arguments: str) -> list[str]:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def refused(self, *arguments: str) -> str:
        """The error that the command line prints as one line."""
        result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(self.plane.kubeconfig)])
        assert isinstance(result.exception, ZonewiseError), result.output
        return str(result.exception)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        command = [str(self.plane.binaries / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        result = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin, timeout=120)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def clean(self) -> None:
        """Removes every trace of an install, for the next test."""
        self.run_ok("uninstall", "--yes", "--purge")
        assert self.leftovers() == []

    def leftovers(self) -> list[str]:
        """All objects named zonewise, of installed kinds and of kinds created at runtime."""
        kinds = [str(resource) for resource in ORDER] + ["leases.coordination.k8s.io"]
        items = json.loads(self.kubectl("get", ",".join(kinds), "-A", "-o", "json"))["items"]
        return [f"{kind} {name}" for kind, _, name in map(identity, items) if "zonewise" in name]


def install_with(config: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("zonewise")), "install", *arguments, "--kubeconfig", config]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def account_with(site: Site, rights: Sequence[Right], folder: Path) -> str:
    """Kubeconfig of a service account with exactly these rights."""
    site.kubectl("create", "serviceaccount", "installer")
    grant(site, rights)
    site.kubectl(
        "create", "clusterrolebinding", "installer", "--clusterrole=installer", "--serviceaccount=default:installer"
    )
    cluster = {"server": site.plane.server, "certificate-authority": str(site.plane.ca_path)}
    document = {
        "current-context": "it",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": site.kubectl("create", "token", "installer").strip()}}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
    }
    config = folder / "installer.config"
    config.write_text(json.dumps(document))
    return str(config)


def grant(site: Site, rights: Sequence[Right]) -> None:
    rules = [{"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]} for right in rights]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "installer"}}
    site.kubectl("apply", "-f", "-", stdin=json.dumps(role | {"rules": rules}))
