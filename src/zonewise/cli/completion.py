"""`zonewise completion`: the script that teaches a shell our commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog='Example: eval "$(zonewise completion bash)", best kept in ~/.bashrc.')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from zonewise.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None, "click knows the three shells we offer"
    click.echo(script(cli, {}, "zonewise", "_ZONEWISE_COMPLETE").source())
