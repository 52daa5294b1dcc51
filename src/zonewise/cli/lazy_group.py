"""A click group that lists its commands by name and help line, and imports only the command that runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

Members = Mapping[str, tuple[str, str]]
"""Command name to its location, as `module:attribute`, and its help line."""


class LazyGroup(click.Group):
    def __init__(self, *arguments: Any, members: Members, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.members = members

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(self.members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in self.members:
            return None
        module, _, attribute = self.members[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.members and not name.startswith("-"):
            raise click.UsageError(f"no command {name!r}. {self._suggestion(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.members[name][1]) for name in sorted(self.members)])

    def _suggestion(self, ctx: click.Context, name: str) -> str:
        import difflib

        matches = difflib.get_close_matches(name, self.members, n=1)
        return f"Did you mean {matches[0]!r}?" if matches else f"`{ctx.command_path} --help` lists them all."
