"""Every command as one tree of plain values, and `zonewise man`, which prints it as a manual page.

The reference in docs/ is written from the same tree (`zonewise.cli.reference`), so neither can miss a flag.
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
    spelled: str
    """Such as `-n, --namespace TEXT`; an argument's name for one without dashes."""
    explained: str


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
    """The command, and all below it."""
    context = click.Context(command, info_name=path[-1], parent=parent)
    yield _entry(command, path, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from entries(below, (*path, name), context)


def _entry(command: click.Command, path: tuple[str, ...], context: click.Context) -> CommandEntry:
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    return CommandEntry(
        path, usage, _paragraphs(command.help or ""), _flags(command, context), _examples(command.epilog or "")
    )


def _paragraphs(text: str) -> tuple[str, ...]:
    parts = inspect.cleandoc(text).replace("\b\n", "").split("\n\n")
    return tuple(" ".join(part.split()) for part in parts if part.strip())


def _flags(command: click.Command, context: click.Context) -> tuple[CommandFlag, ...]:
    """With defaults, as in the help; but not the help's own flag, which every command has."""
    found = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            spelled, explained = record
            found.append(CommandFlag(" ".join(spelled.split()), " ".join(explained.split())))
    return tuple(found)


def _examples(epilog: str) -> tuple[str, ...]:
    """The lines of the epilogue as they stand, without its heading."""
    lines = [line.rstrip() for line in inspect.cleandoc(epilog.replace("\b", "")).splitlines()]
    return tuple(line.strip() for line in lines if line.strip() and not re.fullmatch(r"Examples?:", line.strip()))


@click.command("man", epilog="\b\nExamples:\n  zonewise man | man -l -\n  zonewise man lab up > zonewise-lab-up.1\n")
@click.argument("command", nargs=-1)
def man(command: tuple[str, ...]) -> None:
    """Print the manual page: of everything, or of COMMAND."""
    from zonewise.cli.main import cli

    wanted = ("zonewise", *command)
    chosen = [entry for entry in entries(cli, ("zonewise",)) if entry.path[: len(wanted)] == wanted]
    if not chosen:
        raise UsageError(f"no command {' '.join(command)!r}: `zonewise --help` lists them all")
    click.echo(page(chosen), nl=False)


def page(chosen: Sequence[CommandEntry]) -> str:
    """In the language of man(7)."""
    first, *rest = chosen
    title = "-".join(first.path)
    lines = [
        f'.TH "{title.upper()}" 1 "" "zonewise {__version__}" "Zonewise"',
        ".SH NAME",
        rf"{_plain(title)} \- {_plain(first.text[0].rstrip('.')) if first.text else title}",
        ".SH SYNOPSIS",
        rf"\fB{_plain(first.usage)}\fR",
        ".SH DESCRIPTION",
        *_described(first),
    ]
    if rest:
        lines.append(".SH COMMANDS")
        for entry in rest:
            lines += [f'.SS "{_plain(entry.name)}"', rf"\fB{_plain(entry.usage)}\fR", ".PP", *_described(entry)]
    return "\n".join(lines) + "\n"


def _described(entry: CommandEntry) -> list[str]:
    lines = [line for paragraph in entry.text for line in (".PP", _plain(paragraph))]
    for flag in entry.flags:
        lines += [".TP", rf"\fB{_plain(flag.spelled)}\fR", _plain(flag.explained) or r"\&"]
    if entry.examples:
        lines += [".PP", "Examples:", ".nf", *(rf"\&  {_plain(example)}" for example in entry.examples), ".fi"]
    return lines


def _plain(text: str) -> str:
    r"""A backslash, a dash and a dot at the start of a line mean something to roff."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
