"""A sweep that can be interrupted: every finished task is a line in a file, and the same sweep goes on from there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from zonewise.simulator.cache import sources_fingerprint
from zonewise.simulator.decide.tasks import Partial, Task
from zonewise.simulator.runners import Runner


def file_for(tasks: Sequence[Task], directory: Path) -> Path:
    """Named after the tasks and the sources: what another sweep or another version left is never read."""
    written = msgspec.json.encode(tasks, order="deterministic", enc_hook=repr)
    digest = hashlib.sha256(sources_fingerprint().encode() + written).hexdigest()
    return directory / f"sweep-{digest[:32]}.jsonl"


def sweep(tasks: Sequence[Task], run: Runner, file: Path, notice: Callable[[Partial], None]) -> list[Partial]:
    """All partials, those of an earlier, interrupted run included; the file is gone once all is done."""
    done = {partial.number: partial for partial in _left_over(file)}
    for partial in done.values():
        notice(partial)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        out.writelines(map(_line, done.values()))
        for partial in run([task for task in tasks if task.number not in done]):
            out.write(_line(partial))
            out.flush()
            done[partial.number] = partial
            notice(partial)
    file.unlink()
    return list(done.values())


def _line(partial: Partial) -> bytes:
    return msgspec.json.encode(partial) + b"\n"


def _left_over(file: Path) -> Iterator[Partial]:
    """What a run before this one finished; a line cut off in the middle counts for nothing."""
    if not file.exists():
        return
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            yield msgspec.json.decode(line, type=Partial)
        except msgspec.DecodeError:
            continue
