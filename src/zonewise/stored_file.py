"""Stored documents in files: what `objects.stored` says of newer and torn ones, done on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from zonewise import log
from zonewise.objects import stored

_log = log.get_logger(__name__)

TORN = ".torn-"
"""Between the name of a file that was set aside and the time, in nanoseconds."""
T = TypeVar("T")


def read(path: Path, type_: type[T], dec_hook: Callable[[type, Any], Any] | None = None) -> T | None:
    """None if there is no such file, or it is torn or a directory: then it is renamed. Raises NewerError, and OSError."""
    try:
        return stored.read(path.read_bytes(), type_, str(path), dec_hook)
    except FileNotFoundError:
        return None
    except (stored.TornError, IsADirectoryError) as error:
        aside = path.with_name(f"{path.name}{TORN}{time.time_ns()}")
        path.rename(aside)
        _log.warning("torn file set aside", problem=str(error), renamed=aside.name)
        return None
