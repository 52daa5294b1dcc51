"""Kubernetes' own conformance specs, with Zonewise in the place of kube-proxy, CoreDNS and the EndpointSlice controller."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.conformance import report, tiers
from support.conformance.junit import SpecOutcome
from support.conformance.lab_run import LabRun, RunInputs
from support.conformance.setups import Setup
from zonewise.lab.progress import ProgressReporter

SPECS = 66
"""47 of SIG Network, and 19 of DisruptionController."""


@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("conformance")
def test_zonewise_passes_the_specs_of_services_dns_and_evictions(tmp_path: Path) -> None:
    progress = ProgressReporter(sys.stderr)
    tier = tiers.choose("conformance")
    inputs = RunInputs.ensure(progress, tier, [Setup.OURS])
    lab = LabRun(f"test-{os.getpid()}-e2e", tier, Setup.OURS, inputs, tmp_path)
    result = lab.execute(progress)
    failures = report.failures(report.rows([result]))
    assert not result.failures, f"{failures}\nlog: {tmp_path}"
    assert result.count(SpecOutcome.PASSED) == SPECS
