"""Prints the tests that failed in the last run, one in a line, to be given to pytest as @FILE.

`--last-failed` does not do: what belongs to a group of xdist is called otherwise when it has run than when it is looked for.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_CACHE = Path(__file__).parents[1] / ".pytest_cache/v/cache/lastfailed"
_GROUP = re.compile(r"@[\w-]+$")


def main() -> None:
    failed = json.loads(_CACHE.read_text())
    if not failed:
        sys.exit("the run ended before its time, and no test is to blame")
    print(*dict.fromkeys(_GROUP.sub("", name) for name in failed), sep="\n")


if __name__ == "__main__":
    main()
