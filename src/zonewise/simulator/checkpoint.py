"""Checkpoints of a sweep: every finished task is a line in a file, from which an interrupted sweep resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from zonewise.simulator.cache import sources_fingerprint
from zonewise.simulator.decide.tasks import Partial, Task
from zonewise.simulator.runners import Runner


def file_for(tasks: Sequence[Task], directory: Path) -> Path:
    """Named after the tasks and the sources, so that files of another sweep or version are never read."""
    encoded = msgspec.json.encode(tasks, order="deterministic", enc_hook=repr)
    digest = hashlib.sha256(sources_fingerprint().encode() + encoded).hexdigest()
    return directory / f"sweep-{digest[:32]}.jsonl"


def sweep(tasks: Sequence[Task], run: Runner, file: Path, on_partial: Callable[[Partial], None]) -> list[Partial]:
    """All partial results, including those of an interrupted run; deletes the file when complete."""
    done = {partial.number: partial for partial in _saved(file)}
    for partial in done.values():
        on_partial(partial)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        out.writelines(map(_line, done.values()))
        for partial in run([task for task in tasks if task.number not in done]):
            out.write(_line(partial))
            out.flush()
            done[partial.number] = partial
            on_partial(partial)
    file.unlink()
    return list(done.values())


def _line(partial: Partial) -> bytes:
    return msgspec.json.encode(partial) + b"\n"


def _saved(file: Path) -> Iterator[Partial]:
    """The results of an earlier run; an incomplete line is ignored."""
    if not file.exists():
        return
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            yield msgspec.json.decode(line, type=Partial)
        except msgspec.DecodeError:
            continue
