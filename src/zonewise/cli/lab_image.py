"""`zonewise lab image`: container images of Zonewise, built on this machine (`zonewise.lab.build.container_images`)."""

from __future__ import annotations

import pathlib
import sys

import click

from zonewise.cli import printing


@click.group(epilog="Example: zonewise lab image build --csi")
def image() -> None:
    """Container images of Zonewise, built on this machine without a registry."""


@image.command(
    epilog="""\b
Examples:
  zonewise lab image build                           the programs: prints the image's name and its archive
  zonewise lab image build --csi --out csi.tar       the storage driver, with Ceph's libraries
  zonewise lab load $(zonewise lab image build -o json | jq -r .archive)
"""
)
@click.option("--csi", is_flag=True, help="The image of the storage driver, which has Ceph's libraries.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="Also copy the archive to this file."
)
@click.option("--renew", is_flag=True, help="Build it again, with the Debian packages that the mirror has now.")
@printing.output_option("text", "json")
def build(csi: bool, out: pathlib.Path | None, renew: bool, output: str) -> None:
    """Build an image from the sources of Zonewise, as the Containerfile says, and keep it in the cache.

    Needs root, and a clone of the repository; installs buildah and mmdebstrap. An image of the same sources is built once.
    The archive is one that `zonewise lab load`, `ctr images import`, `docker load` and `podman load` read.
    """
    import shutil

    from zonewise.lab.build import container_images
    from zonewise.lab.build.container_images import ImageTarget
    from zonewise.lab.progress import ProgressReporter

    reporter = ProgressReporter(sys.stderr)
    try:
        built = container_images.ensure(ImageTarget.CSI if csi else ImageTarget.PROGRAMS, reporter, renew=renew)
    finally:
        reporter.close()
    if out is not None:
        shutil.copyfile(built.path, out)
    report = container_images.report(built, out or built.path)
    if output == "json":
        printing.echo_data(report, output)
    else:
        click.echo(f"{report.image}\n{report.archive}  ({report.bytes / 1e6:.0f} MB, uncompressed)")
