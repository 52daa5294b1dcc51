"""All commands as plain values, and `zonewise man`, which prints them as a manual page.

`docs/reference.md` is generated from the same values (`zonewise.cli.reference`), so neither can miss a flag.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from zonewise import __version__
from zonewise.errors import UsageError


@dataclass(frozen=True, slots=True)
class CommandFlag:
    spelling: str
    """Such as `-n, --namespace TEXT`, or the name of an argument."""
    help: str


@dataclass(frozen=True, slots=True)
class CommandEntry:
    path: tuple[str, ...]
    """Such as ("zonewise", "lab", "up")."""
    usage: str
    text: tuple[str, ...]
    """Paragraphs."""
    flags: tuple[CommandFlag, ...]
    examples: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join(self.path)


def entries(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[CommandEntry]:
    """The command and its subcommands."""
    context = click.Context(command, info_name=path[-1], parent=parent)
    yield _entry(command, path, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None and not subcommand.hidden:
                yield from entries(subcommand, (*path, name), context)


def _entry(command: click.Command, path: tuple[str, ...], context: click.Context) -> CommandEntry:
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    return CommandEntry(
        path, usage, _paragraphs(command.help or ""), _flags(command, context), _examples(command.epilog or "")
    )


def _paragraphs(text: str) -> tuple[str, ...]:
    parts = inspect.cleandoc(text).replace("\b\n", "").split("\n\n")
    return tuple(" ".join(part.split()) for part in parts if part.strip())


def _flags(command: click.Command, context: click.Context) -> tuple[CommandFlag, ...]:
    """With defaults, as in the help. Without --help, which every command has."""
    flags = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            flags.append(CommandFlag(*(" ".join(text.split()) for text in record)))
    return tuple(flags)


def _examples(epilog: str) -> tuple[str, ...]:
    """The lines of the epilogue without its heading."""
    lines = [line.rstrip() for line in inspect.cleandoc(epilog.replace("\b", "")).splitlines()]
    return tuple(line.strip() for line in lines if line.strip() and not re.fullmatch(r"Examples?:", line.strip()))


@click.command("man", epilog="\b\nExamples:\n  zonewise man | man -l -\n  zonewise man lab up > zonewise-lab-up.1\n")
@click.argument("command", nargs=-1)
def man(command: tuple[str, ...]) -> None:
    """Print the manual page of COMMAND, or of all commands."""
    from zonewise.cli.main import cli

    path = ("zonewise", *command)
    chosen = [entry for entry in entries(cli, ("zonewise",)) if entry.path[: len(path)] == path]
    if not chosen:
        raise UsageError(f"no command {' '.join(command)!r}: `zonewise --help` lists them all")
    click.echo(manual(chosen), nl=False)


def manual(chosen: Sequence[CommandEntry]) -> str:
    """In man(7) markup."""
    first, *rest = chosen
    title = "-".join(first.path)
    lines = [
        f'.TH "{title.upper()}" 1 "" "zonewise {__version__}" "Zonewise"',
        ".SH NAME",
        rf"{_escaped(title)} \- {_escaped(first.text[0].rstrip('.')) if first.text else title}",
        ".SH SYNOPSIS",
        rf"\fB{_escaped(first.usage)}\fR",
        ".SH DESCRIPTION",
        *_description(first),
    ]
    if rest:
        lines.append(".SH COMMANDS")
        for entry in rest:
            lines += [f'.SS "{_escaped(entry.name)}"', rf"\fB{_escaped(entry.usage)}\fR", ".PP", *_description(entry)]
    return "\n".join(lines) + "\n"


def _description(entry: CommandEntry) -> list[str]:
    lines = [line for paragraph in entry.text for line in (".PP", _escaped(paragraph))]
    for flag in entry.flags:
        lines += [".TP", rf"\fB{_escaped(flag.spelling)}\fR", _escaped(flag.help) or r"\&"]
    if entry.examples:
        lines += [".PP", "Examples:", ".nf", *(rf"\&  {_escaped(example)}" for example in entry.examples), ".fi"]
    return lines


def _escaped(text: str) -> str:
    r"""Backslashes and dashes, and dots and quotes at the start of a line, are roff markup."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
