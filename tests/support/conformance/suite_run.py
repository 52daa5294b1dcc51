"""One run of Kubernetes' suite against a lab: ginkgo with a tier's selection, and the report it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from support.conformance import junit, tiers
from support.conformance.junit import SpecOutcome, SpecResult
from support.conformance.programs import SuitePrograms
from support.conformance.report import SetupResult
from support.conformance.tiers import Tier
from zonewise.errors import ZonewiseError
from zonewise.lab.state import Lab

_REPORT: Final = "junit_01.xml"
_STOPPED_WITHIN_SECONDS: Final = 60
_SUITE_FLAGS: Final = (
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
    flags: Sequence[str] = ()
    """More of the suite's own."""

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
        check(code, specs, self.log)
        return SetupResult(self.setup, specs, seconds, datetime.now(UTC).date().isoformat())

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
            *_SUITE_FLAGS,
            *self.flags,
        ]

    def _run_ginkgo(self) -> int:
        """Interrupted, it is given time to delete what specs made, then killed."""
        with self.log.open("w") as log, session(self.argv(), log.fileno()) as process:
            try:
                return process.wait()
            except BaseException:
                stop(process)
                raise


def check(code: int, specs: Sequence[SpecResult], log: Path) -> None:
    """Raises for a report that does not tell how the suite ended: a parallel process was lost, or time was up between specs."""
    if not specs:
        raise ZonewiseError(f"no spec was selected: see {log}")
    if code != 0 and not any(spec.outcome is SpecOutcome.FAILED for spec in specs):
        raise ZonewiseError(f"the suite ended with code {code}, though no spec failed: see {log}")


def session(argv: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C reaches this process only, which then stops it. Killed, it takes the suite along.

    `timeout`, here without a time, hands its SIGTERM to its whole group and kills it later: ginkgo does neither end by the
    signal nor tell its parallel processes.
    """
    outer = ("setpriv", "--pdeathsig", "TERM", "--", "timeout", f"--kill-after={_STOPPED_WITHIN_SECONDS}", "0")
    return subprocess.Popen([*outer, *argv], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def stop(process: subprocess.Popen[bytes], within_seconds: float = _STOPPED_WITHIN_SECONDS) -> None:
    """Only `timeout` gets SIGTERM here: a second one to the suite's processes would make them skip their cleanup."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
