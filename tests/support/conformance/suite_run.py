"""One run of Kubernetes' suite against a lab: ginkgo with a tier's selection, and the report it writes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.conformance import junit, tiers
from support.conformance.programs import SuitePrograms
from support.conformance.report import SetupResult
from support.conformance.tiers import Tier
from zonewise.errors import ZonewiseError
from zonewise.lab.state import Lab

_REPORT: Final = "junit_01.xml"
_STOPPED_WITHIN_SECONDS: Final = 60
_PACKAGES: Final = (
    "--provider=skeleton",  # no cloud
    "--node-os-distro=debian",
    "--dns-domain=cluster.local",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    tier: Tier
    setup: str
    lab: Lab
    programs: SuitePrograms
    directory: Path
    """Of the log and the report."""
    focus: str = ""
    """Instead of the tier's, to run a few specs."""

    @property
    def log(self) -> Path:
        return self.directory / "e2e.log"

    def execute(self) -> SetupResult:
        self.directory.mkdir(parents=True, exist_ok=True)
        report = self.directory / _REPORT
        report.unlink(missing_ok=True)
        begin = time.monotonic()
        code = self._run_ginkgo()
        seconds = time.monotonic() - begin
        if not report.exists():
            raise ZonewiseError(f"the suite ended with code {code} and without a report: see {self.log}")
        specs = junit.read(report.read_text())
        if not specs:
            raise ZonewiseError(f"no spec was selected: see {self.log}")
        return SetupResult(self.setup, specs, seconds)

    def argv(self) -> list[str]:
        flags = [flag for flag in tiers.ginkgo_flags(self.tier) if not (self.focus and flag.startswith("--focus="))]
        return [
            str(self.programs.ginkgo),
            "--no-color",
            *flags,
            *([f"--focus={self.focus}"] if self.focus else []),
            str(self.programs.suite),
            "--",
            f"--kubeconfig={self.lab.node_kubeconfig}",
            f"--kubectl-path={self.lab.binaries / 'kubectl'}",
            f"--num-nodes={len(self.lab.zones) * self.lab.nodes_per_zone}",
            f"--report-dir={self.directory}",
            *_PACKAGES,
        ]

    def _run_ginkgo(self) -> int:
        """Interrupted, it is given time to delete what specs made, then killed."""
        with self.log.open("w") as log, _session(self.argv(), log.fileno()) as process:
            try:
                return process.wait()
            except BaseException:
                _stop(process)
                raise


def _session(argv: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C reaches this process only, which then stops it."""
    return subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOPPED_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
