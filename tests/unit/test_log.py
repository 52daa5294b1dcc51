"""Log lines: one per event, readable by people or machines, and never with a secret in them."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from zonewise import log

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIHIDDEN\nxyz\n-----END EC PRIVATE KEY-----"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def logged(form: log.Format, level: log.Level = "info") -> tuple["structlog.typing.FilteringBoundLogger", io.StringIO]:
    stream = io.StringIO()
    log.configure(form, level, stream)
    return log.get_logger("zonewise.test"), stream


def test_json_lines_hold_message_and_facts() -> None:
    logger, stream = logged("json")
    logger.warning("lease lost", lease="kube-system/x", held_seconds=3, text="two\nlines")
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "lease lost",
        "level": "warning",
        "logger": "zonewise.test",
        "lease": "kube-system/x",
        "held_seconds": 3,
        "text": "two\nlines",
    }


def test_key_in_a_webhooks_path_is_redacted() -> None:
    logger, stream = logged("json")
    logger.warning("no answer", url=f"https://guard.svc:443/evictions/{'ab' * 32}?timeout=10s", digest="cd" * 32)
    line = json.loads(stream.getvalue())
    assert line["url"] == "https://guard.svc:443/evictions/[redacted]?timeout=10s"
    assert line["digest"] == "cd" * 32


def test_human_lines_are_one_line_without_colours_off_a_terminal() -> None:
    logger, stream = logged("human")
    logger.info("leadership gained", lease="kube-system/x", text="two\nlines")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "leadership gained" in stream.getvalue()
    assert "lease=kube-system/x" in stream.getvalue()


def test_a_terminal_gets_colours() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    log.configure("human", stream=stream)
    log.get_logger("zonewise.test").info("hello")
    assert "\x1b[" in stream.getvalue()


def test_lines_below_the_level_are_dropped() -> None:
    logger, stream = logged("json", "warning")
    logger.info("not this")
    logger.error("this")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["this"]


def test_a_logger_made_before_configure_obeys_it() -> None:
    logger = log.get_logger("zonewise.early")
    _, stream = logged("json")
    logger.info("late")
    assert json.loads(stream.getvalue())["logger"] == "zonewise.early"


def test_the_standard_librarys_lines_come_the_same_way() -> None:
    _, stream = logged("json")
    refused = ValueError(f"refused with Bearer {TOKEN}")
    logging.getLogger("aiohttp.server").error("failed on %s", "a request", exc_info=refused)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["logger"]) == ("failed on a request", "error", "aiohttp.server")
    assert "ValueError: refused with Bearer [redacted]" in line["exception"]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("token", "abc", "[redacted]"),
        ("bearer_token", "abc", "[redacted]"),
        ("Authorization", "abc", "[redacted]"),
        ("password", 1234, "[redacted]"),
        ("client-secret", ["a", "b"], "[redacted]"),
        ("token", None, None),
        ("has_token", True, True),
        ("secret_name", "kube-system/tls", "kube-system/tls"),
        ("tokens", 3, 3),
        ("ratio", 0.5, 0.5),
        ("body", {"user": "x", "token": "abc", "deep": [{"password": "p"}]},
         {"user": "x", "token": "[redacted]", "deep": [{"password": "[redacted]"}]}),
        ("error", "Bearer abc was refused", "Bearer [redacted] was refused"),
        ("error", "Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [redacted]"),
        ("error", f"got {TOKEN}.", "got [redacted]."),
        ("error", f"key {KEY} here", "key [redacted] here"),
        ("error", KEY[:60], "[redacted]"),
        ("error", "https://user:pass@host/path", "https://user:[redacted]@host/path"),
        ("error", "https://host/path?token=abc&x=1", "https://host/path?token=[redacted]&x=1"),
        ("error", "Access(server='s', token='abc')", "Access(server='s', token='[redacted]')"),
        ("error", '{"password": "abc", "n": 1}', '{"password": "[redacted]", "n": 1}'),
        ("error", "get of secret kube-system/x: not found", "get of secret kube-system/x: not found"),
        ("error", ValueError("token=abc"), "token=[redacted]"),
    ],
)  # fmt: skip
def test_secrets_are_redacted_and_the_rest_is_not(name: str, value: object, shown: object) -> None:
    assert log.redact(value, name=name) == shown


def test_what_is_nested_without_end_is_cut() -> None:
    endless: dict[str, object] = {}
    endless["self"] = endless
    assert "..." in str(log.redact(endless))


@given(st.text(alphabet="abcXYZ0189-._~+/", min_size=1), st.sampled_from(["json", "human"]), st.sampled_from("abc"))
def test_no_token_reaches_the_stream(token: str, form: log.Format, way: str) -> None:
    secret = f"S{token}S"
    logger, stream = logged(form)
    match way:
        case "a":
            message = f"sent Authorization: Bearer {secret}"
            logger.error(message)
        case "b":
            logger.error("failed", headers={"Authorization": f"Bearer {secret}"})
        case _:
            logger.error("failed", error=RuntimeError(f"Bearer {secret}"))
    assert secret not in stream.getvalue()


def test_importing_it_is_light() -> None:
    code = "import sys, zonewise.log as log; log.get_logger('x'); sys.exit('structlog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_configure_warnings_go_to_stderr() -> None:
    code = "from zonewise import log; l = log.get_logger('x'); l.info('quiet'); l.warning('loud', token='abc')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert "loud" in done.stderr
    assert "quiet" not in done.stderr
    assert "abc" not in done.stderr


def test_uvloop_write_after_close_is_not_logged() -> None:
    stream = io.StringIO()
    log.configure("json", "debug", stream)
    for text in ("unable to perform operation on <TCPTransport closed=True>; the handler is closed", "another error"):
        logging.getLogger("asyncio").error("Fatal error on SSL protocol", exc_info=RuntimeError(text))
    (line,) = stream.getvalue().splitlines()
    assert "another error" in line
