"""`zonewise doctor`: what is wrong with a cluster, and what to do about it. `zonewise.diagnostics` finds out, this prints it."""

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
  zonewise doctor                  the cluster, Zonewise in it, and what Services ask
  zonewise doctor --pre            before `zonewise install`: is the cluster fit for it, and may you?
  zonewise doctor -o json | jq '.findings[] | select(.level == "Wrong")'
  zonewise doctor -f dump.yaml     what a dump tells
"""
)
@click.option("--pre", is_flag=True, help="Before install: nothing that only an installed Zonewise has.")
@click.option("-q", "--quiet", is_flag=True, help="Only what is wrong or worth knowing.")
@hints_option
@dumps.file_option
@printing.output_option
@cluster_options
def doctor(**options: Any) -> None:
    """Check a cluster before and after Zonewise is installed: labels of nodes, what carries Services and whether it
    heeds hints, webhooks, certificates, rights, clocks, others who write slices; with a fix for each finding.

    Reads only; the API server is asked what you and the components may do. The exit code is 1 where something is wrong.
    """
    from zonewise.diagnostics.decide.doctor.checks import diagnose
    from zonewise.routing import HintsForm

    hints = HintsForm(options["hints"])
    found = diagnose(_facts(options), datetime.now(UTC), hints, before_install=options["pre"])
    if options["output"] in {"json", "yaml"}:
        printing.echo_data(found, options["output"])
    else:
        click.echo("\n".join(_lines(found, quiet=options["quiet"], wide=options["output"] == "wide")))
    sys.exit(1 if found.wrong else 0)


def _facts(options: dict[str, Any]) -> DoctorFacts:
    if options["file"] is not None:
        from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
        from zonewise.diagnostics.decide.from_dump import STATUS_KINDS, snapshot_from_dump

        objects = dumps.read(options["file"], STATUS_KINDS)
        return DoctorFacts(
            snapshot=snapshot_from_dump(objects, dumps.source_of(options["file"])),
            live=False,
            other_webhooks=objects["MutatingWebhookConfiguration"],
            daemon_sets=[each for each in objects["DaemonSet"] if each.metadata.namespace == "kube-system"],
        )
    from zonewise.diagnostics.read.doctor import read_doctor_facts
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return read_cluster(access, lambda reader: read_doctor_facts(reader, before_install=options["pre"]))


def _lines(found: Diagnosis, *, quiet: bool, wide: bool) -> Iterator[str]:
    for group, findings in groupby(found.findings, key=lambda each: each.group):
        told = [each for each in findings if not quiet or each.level != "Fine"]
        if told:
            yield printing.styled(group, "bold")
            for each in told:
                yield from _finding_lines(each, wide=wide)
            yield ""
    yield _closing(found)


def _finding_lines(found: Finding, *, wide: bool) -> Iterator[str]:
    mark, style = _MARKS[found.level]
    first, *rest = printing.folded(found.sentence, 4)
    yield f"  {printing.styled(mark, style)} {first}"
    yield from (f"    {line}" for line in rest)
    if wide and found.objects:
        yield from (f"      {name}" for name in found.objects)
    if found.fix:
        first, *rest = printing.folded(found.fix, 6)
        yield f"    → {first}"
        yield from (f"      {line}" for line in rest)


def _closing(found: Diagnosis) -> str:
    notes = f", {printing.count(found.notes, 'thing')} worth knowing" if found.notes else ""
    if not found.wrong:
        return f"{printing.styled('✓', 'green')} nothing is wrong{notes}"
    are = "is" if found.wrong == 1 else "are"
    return f"{printing.styled('✗', 'red')} {printing.count(found.wrong, 'thing')} {are} wrong{notes}"
