"""`zonewise doctor`: prints the findings of `zonewise.diagnostics` on a cluster, each with a fix."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import dumps, printing
from zonewise.cli.options import cluster_options, hints_option

if TYPE_CHECKING:
    from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
    from zonewise.diagnostics.decide.doctor.findings import Diagnosis, Finding

_MARKS = {"Fine": ("✓", "green"), "Note": ("!", "yellow"), "Wrong": ("✗", "red"), "Unknown": ("?", "")}


@click.command(
    epilog="""\b
Examples:
  zonewise doctor                  the cluster, Zonewise and the Services
  zonewise doctor --pre            before `zonewise install`: requirements and your permissions
  zonewise doctor -o json | jq '.findings[] | select(.level == "Wrong")'
  zonewise doctor -f dump.yaml     a dump instead of a cluster
"""
)
@click.option("--pre", is_flag=True, help="Only checks that make sense before `zonewise install`.")
@click.option("-q", "--quiet", is_flag=True, help="Leave out checks that passed.")
@hints_option
@dumps.file_option
@printing.output_option("text", "wide", "json", "yaml")
@cluster_options
def doctor(**options: Any) -> None:
    """Check a cluster before and after Zonewise is installed: labels of nodes, the data plane of Services and its support
    for hints, webhooks, certificates, permissions, clocks, and other writers of slices; with a fix for each finding.

    Reads only. Permissions are checked by access reviews. The exit code is 1 if something is wrong.
    """
    from zonewise.diagnostics.decide.doctor.checks import diagnose
    from zonewise.routing import HintsForm

    hints = HintsForm(options["hints"])
    result = diagnose(_facts(options), datetime.now(UTC), hints, before_install=options["pre"])
    if options["output"] in {"json", "yaml"}:
        printing.echo_data(result, options["output"])
    else:
        click.echo("\n".join(_lines(result, quiet=options["quiet"], wide=options["output"] == "wide")))
    sys.exit(1 if result.wrong else 0)


def _facts(options: dict[str, Any]) -> DoctorFacts:
    if options["file"] is not None:
        from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
        from zonewise.diagnostics.decide.from_dump import STATUS_KINDS, snapshot_from_dump

        objects = dumps.read(options["file"], STATUS_KINDS)
        return DoctorFacts(
            snapshot=snapshot_from_dump(objects, dumps.source_of(options["file"])),
            live=False,
            other_webhooks=objects["MutatingWebhookConfiguration"],
            daemon_sets=[
                daemon_set for daemon_set in objects["DaemonSet"] if daemon_set.metadata.namespace == "kube-system"
            ],
        )
    from zonewise.diagnostics.read.doctor import read_doctor_facts
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return read_cluster(access, lambda reader: read_doctor_facts(reader, before_install=options["pre"]))


def _lines(diagnosis: Diagnosis, *, quiet: bool, wide: bool) -> Iterator[str]:
    for group, findings in groupby(diagnosis.findings, key=lambda finding: finding.group):
        shown = [finding for finding in findings if not quiet or finding.level != "Fine"]
        if shown:
            yield printing.styled(group, "bold")
            for finding in shown:
                yield from _finding_lines(finding, wide=wide)
            yield ""
    yield _summary(diagnosis)


def _finding_lines(finding: Finding, *, wide: bool) -> Iterator[str]:
    mark, style = _MARKS[finding.level]
    first, *rest = printing.wrapped(finding.sentence, 4)
    yield f"  {printing.styled(mark, style)} {first}"
    yield from (f"    {line}" for line in rest)
    if wide and finding.objects:
        yield from (f"      {name}" for name in finding.objects)
    if finding.fix:
        first, *rest = printing.wrapped(finding.fix, 6)
        yield f"    → {first}"
        yield from (f"      {line}" for line in rest)


def _summary(diagnosis: Diagnosis) -> str:
    notes = f", {printing.count(diagnosis.notes, 'thing')} worth knowing" if diagnosis.notes else ""
    if not diagnosis.wrong:
        return f"{printing.styled('✓', 'green')} nothing is wrong{notes}"
    are = "is" if diagnosis.wrong == 1 else "are"
    return f"{printing.styled('✗', 'red')} {printing.count(diagnosis.wrong, 'thing')} {are} wrong{notes}"
