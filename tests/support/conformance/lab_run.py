"""A tier against one set-up, in a lab of its own that ends with it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.conformance import budgets as namespace_budgets
from support.conformance import images, kubectl, programs, setups, sidecars, storage
from support.conformance.programs import SuitePrograms
from support.conformance.report import SetupResult
from support.conformance.setups import InstallInputs, Setup
from support.conformance.suite_run import SuiteRun
from support.conformance.tiers import Tier
from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.errors import ZonewiseError
from zonewise.lab import labs, processes
from zonewise.lab.build import build, container_images
from zonewise.lab.build import setup as preparation
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.build.container_images import ImageTarget
from zonewise.lab.progress import ProgressReporter
from zonewise.lab.state import Lab

_PATH_HASH_LENGTH: Final = 6
_OURS: Final = f"--namespace={SYSTEM_NAMESPACE}"


def default_name(root: Path) -> str:
    """How labs of this clone are called: a run removes the labs of its own name first, which must not be another clone's."""
    return f"e2e-{hashlib.sha256(os.fsencode(root)).hexdigest()[:_PATH_HASH_LENGTH]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """What is built once for all runs: programs, archives of images, and what set-ups install."""

    programs: SuitePrograms
    archives: Sequence[Path]
    install: InstallInputs

    @classmethod
    def ensure(cls, reporter: ProgressReporter, tier: Tier, chosen: Sequence[Setup]) -> RunInputs:
        build.ensure(DEFAULT_VERSION, reporter)
        preparation.prepare_nodes(reporter)
        if tier.network_policies:
            preparation.prepare_network_policies(reporter)
        built = programs.ensure(reporter)
        archives, zonewise, csi, beside = [images.ensure(built, reporter)], "", "", None
        if any(map(setups.needs_zonewise, chosen)):
            image = container_images.ensure(ImageTarget.PROGRAMS, reporter)
            archives, zonewise = [image.path, *archives], image.name
        if any(map(setups.storage_of, chosen)):
            image, beside = container_images.ensure(ImageTarget.CSI, reporter), sidecars.ensure(reporter)
            archives, csi = [image.path, *beside.archives, *archives], image.name
        return cls(
            programs=built, archives=archives, install=InstallInputs(zonewise=zonewise, csi=csi, sidecars=beside)
        )


@dataclass(frozen=True, slots=True)
class LabRun:
    name: str
    tier: Tier
    setup: Setup
    inputs: RunInputs
    directory: Path
    keep: bool = False

    def execute(self, reporter: ProgressReporter, focus: str = "") -> SetupResult:
        """A lab of a run that was killed is removed first."""
        try:
            self._end(reporter)
            return self._run_suite(reporter, focus)
        finally:
            self._end(reporter)

    def _end(self, reporter: ProgressReporter) -> None:
        if not self.keep:
            with labs.ignoring_signals():
                labs.down(self.name, reporter.step)

    def _run_suite(self, reporter: ProgressReporter, focus: str) -> SetupResult:
        reporter.step(f"{self.setup}: {setups.description(self.setup)}")
        options = setups.lab_options(
            self.setup,
            self.tier.nodes_per_zone,
            self.inputs.archives,
            network_policies=self.tier.network_policies,
        )
        lab = labs.up(self.name, options, reporter.step)
        setups.install(self.setup, lab, self.inputs.install, reporter.step)
        run = SuiteRun(
            tier=self.tier,
            setup=self.setup,
            lab=lab,
            programs=self.inputs.programs,
            directory=self.directory,
            focus=focus,
            flags=self._storage_flags(),
        )
        reporter.step(f"running {self.tier.what}; log: {run.log}")
        budgets = self.tier.budgets and setups.needs_zonewise(self.setup)
        with namespace_budgets.in_every_namespace(lab) if budgets else nullcontext():
            result = run.execute()
        if result.failures:
            with suppress(ZonewiseError, OSError):  # logs help, but the result counts
                self._keep_logs(lab)
        return result

    def _keep_logs(self, lab: Lab) -> None:
        """Of the lab's programs, beside the suite's: the lab is removed."""
        kept = self.directory / "lab"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(lab.directory / processes.LOGS, kept)
        for pod in kubectl.run(lab, "get", "pods", _OURS, "--output=name").split():
            with suppress(ZonewiseError):  # one that has just gone
                (kept / f"{pod.partition('/')[2]}.log").write_text(
                    kubectl.run(lab, "logs", _OURS, "--all-containers", pod)
                )

    def _storage_flags(self) -> list[str]:
        kind = setups.storage_of(self.setup)
        if kind is None:
            return []
        self.directory.mkdir(parents=True, exist_ok=True)
        return [f"--storage.testdriver={storage.write_test_driver(kind, self.directory)}"]
