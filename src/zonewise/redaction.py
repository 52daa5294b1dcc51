"""Caller keys in texts: the last segment of a webhook's path, which no log, error or diff may show. Pure."""

from __future__ import annotations

import re
from typing import Final

CALLER_KEY: Final = r"[0-9a-f]{64}"
CALLER_KEY_IN_PATH: Final = rf"(?<=/){CALLER_KEY}\b"

_IN_PATH: Final = re.compile(CALLER_KEY_IN_PATH)


def hide_caller_keys(text: str) -> str:
    return _IN_PATH.sub("...", text)
