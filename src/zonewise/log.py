"""Logging for every process: one line per state change, for people or as JSON, without secrets.

`configure` is called once by a command that runs for long; modules hold a logger from `get_logger`. Importing this
module imports no library: structlog comes with the first line that is logged.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from zonewise.redaction import CALLER_KEY_IN_PATH

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

Format = Literal["human", "json"]
Level = Literal["debug", "info", "warning", "error"]

REDACTED = "[redacted]"

_SECRET_WORD = r"token|password|passwd|secret|authorization|cookie|private_?key"  # noqa: S105 - the words, not a secret
_SECRET_NAME = re.compile(rf"(?:^|[_\-.])(?:{_SECRET_WORD})$", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    rf"""(?P<before>
        Bearer\s+
      | (?i:authorization:\s*\w+\s+)
      | ://[^\s/:@]+:(?=[^\s/@]+@)                         # the password in a URL
      | (?i:\b(?:{_SECRET_WORD})(?:=|["']\s*[:=]\s*)["']?) # token=..., "token": "..."
    )[^\s"',;&)@]+
      | \beyJ[\w\-]{{5,}}\.[\w\-]{{5,}}\.[\w\-]*           # a JSON web token
      | {CALLER_KEY_IN_PATH}
      | -----BEGIN[A-Z ]*PRIVATE[ ]KEY-----(?s:.*?)(?:-----END[A-Z ]*PRIVATE[ ]KEY-----|\Z)
    """,
    re.VERBOSE,
)
_DEEPEST = 6
_LOGGED: set[tuple[str, ...]] = set()
_MOST_LOGGED = 10_000
_json = False


def configure(
    format: Format = "human",  # noqa: A002 - what users call it: --log-format
    level: Level = "info",
    stream: TextIO | None = None,
) -> None:
    """Send our lines, and the standard library's, to `stream` (stderr); colours only if it is a terminal."""
    global _json  # noqa: PLW0603 - there is one log of a process
    _json = format == "json"
    _configure_structlog(format, level, stream or sys.stderr)
    logging.basicConfig(level=max(_number(level), logging.WARNING), handlers=[_Forwarder()], force=True)


def is_json() -> bool:
    """Whether every line of this process must be JSON, because a log collector reads them."""
    return _json


def get_logger(name: str) -> FilteringBoundLogger:
    return cast("FilteringBoundLogger", _LazyLogger(name))


def warn_once(logger: FilteringBoundLogger, event: str, **facts: Any) -> bool:
    """Log a repeating event once per process, by its facts; False if it was logged before."""
    line = (event, *map(str, facts.values()))
    if line in _LOGGED:
        return False
    if len(_LOGGED) >= _MOST_LOGGED:
        _LOGGED.clear()
    _LOGGED.add(line)
    logger.warning(event, **facts)
    return True


def redact(value: Any, *, name: str = "", depth: int = 0) -> Any:
    """The value without secrets: nothing of it if `name` names a secret, else all but what looks like a credential."""
    match value:
        case None | bool():
            return value
        case _ if _SECRET_NAME.search(name):
            return REDACTED
        case _ if depth > _DEEPEST:
            return "..."
        case int() | float():
            return value
        case str():
            return _redact_text(value)
        case Mapping():
            return {key: redact(item, name=str(key), depth=depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [redact(item, depth=depth + 1) for item in value]
        case _:
            return _redact_text(str(value))


def _redact_text(text: str) -> str:
    return _SECRET_TEXT.sub(lambda match: (match["before"] or "") + REDACTED, text)


def _redact_line(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {name: redact(value, name=name) for name, value in line.items()}


def _number(level: Level) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _structlog() -> Any:
    """structlog without rich. It imports rich for tracebacks that we render before, which doubles its import time."""
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment] # as if it were not installed
        try:
            import structlog  # noqa: F401, PLC0415 - too slow for commands that do not log
        finally:
            del sys.modules["rich"]
    return importlib.import_module("structlog")


def _configure_structlog(form: Format, level: Level, stream: TextIO) -> None:
    structlog = _structlog()
    render: list[Processor]
    if form == "json":
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="time")
        render = [structlog.processors.JSONRenderer()]
    else:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        render = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=32, sort_keys=False)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.format_exc_info,
            _redact_line,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )


class _LazyLogger:
    """Imports structlog when it is first used, and follows `configure` whenever that is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        structlog = _structlog()
        if not structlog.is_configured():
            _configure_structlog("human", "warning", sys.stderr)
        return getattr(structlog.get_logger().bind(logger=self._name), method)


class _Forwarder(logging.Handler):
    """Forwards records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        if _is_write_after_close(record):
            return
        log = get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _is_write_after_close(record: logging.LogRecord) -> bool:
    """uvloop logs an error when it closes a TLS connection while data arrives, as for a cancelled request. No harm."""
    error = record.exc_info[1] if record.exc_info else None
    is_tls = record.name == "asyncio" and record.getMessage().startswith("Fatal error on SSL protocol")
    return is_tls and isinstance(error, RuntimeError) and "the handler is closed" in str(error)
