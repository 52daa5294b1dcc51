"""`zonewise completion`: the script that teaches a shell our commands and flags, and what it completes them with."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import get_completion_class


def lab_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Of the labs on this machine; a shell is never told of errors."""
    from zonewise.lab import state

    with suppress(OSError):
        return [name for name in state.names() if name.startswith(incomplete)]
    return []


def zone_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Of the lab that is named so far, but for zones that stand on the line already."""
    from zonewise.errors import ZonewiseError
    from zonewise.lab import state

    with suppress(OSError, ZonewiseError):
        found = state.find(ctx.params.get("name") or state.DEFAULT_NAME)
        zones = found.zones if found is not None else ()
        return [zone for zone in zones if zone.startswith(incomplete) and zone not in ctx.params.values()]
    return []


@click.command(epilog='Example: eval "$(zonewise completion bash)", best kept in ~/.bashrc.')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from zonewise.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None, "click knows the three shells we offer"
    click.echo(script(cli, {}, "zonewise", "_ZONEWISE_COMPLETE").source())
