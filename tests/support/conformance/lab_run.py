"""A tier against one set-up, in a lab of its own that ends with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.conformance import images, programs, setups
from support.conformance.programs import SuitePrograms
from support.conformance.report import SetupResult
from support.conformance.setups import Setup
from support.conformance.suite_run import SuiteRun
from support.conformance.tiers import Tier
from zonewise.lab import labs
from zonewise.lab.build import build, container_images
from zonewise.lab.build import setup as preparation
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.build.container_images import ImageTarget
from zonewise.lab.progress import ProgressReporter

_PATH_HASH_LENGTH: Final = 6


def default_name(root: Path) -> str:
    """How labs of this clone are called: a run removes the labs of its own name first, which must not be another clone's."""
    return f"e2e-{hashlib.sha256(os.fsencode(root)).hexdigest()[:_PATH_HASH_LENGTH]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """What is built once for all runs: programs, archives of images, and the name of Zonewise's image."""

    programs: SuitePrograms
    archives: Sequence[Path]
    zonewise: str

    @classmethod
    def ensure(cls, reporter: ProgressReporter, *, zonewise: bool) -> RunInputs:
        build.ensure(DEFAULT_VERSION, reporter)
        preparation.prepare_nodes(reporter)
        built = programs.ensure(reporter)
        archives, name = [images.ensure(built, reporter)], ""
        if zonewise:
            image = container_images.ensure(ImageTarget.PROGRAMS, reporter)
            archives, name = [image.path, *archives], image.name
        return cls(programs=built, archives=archives, zonewise=name)


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
        options = setups.lab_options(self.setup, self.tier.nodes_per_zone, self.inputs.archives)
        lab = labs.up(self.name, options, reporter.step)
        setups.install(self.setup, lab, self.inputs.zonewise, reporter.step)
        run = SuiteRun(
            tier=self.tier,
            setup=self.setup,
            lab=lab,
            programs=self.inputs.programs,
            directory=self.directory,
            focus=focus,
        )
        reporter.step(f"running {self.tier.what}; log: {run.log}")
        return run.execute()
