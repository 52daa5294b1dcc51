"""`python -m bench NAME [ARGUMENT...]`: install what the benchmark calls, then run it. Errors are one line."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from zonewise.errors import ZonewiseError
from zonewise.lab.build import setup
from zonewise.lab.progress import ProgressReporter

PACKAGES: Mapping[str, Mapping[str, str]] = {"dns": {"dnsperf": "dnsperf"}}
"""Commands that only benchmarks call, and the Debian package of each, by benchmark."""


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if not Path(__file__).with_name(name).joinpath("__main__.py").exists() or not name:
        names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))
        sys.exit(f"bench: there is no benchmark {name!r}; there are {', '.join(names)}")
    sys.argv = [f"bench.{name}", *arguments]
    try:
        install(name)
        runpy.run_module(f"bench.{name}", run_name="__main__")
    except (ZonewiseError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"bench-{name}: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.exit(f"bench-{name}: interrupted")


def install(name: str) -> None:
    commands = PACKAGES.get(name, {})
    if missing := setup.missing_packages(commands):
        reporter = ProgressReporter(sys.stderr)
        setup.install(missing, f"bench-{name}", reporter)
        reporter.close()
    if missing := setup.missing_packages(commands):
        raise ZonewiseError(f"needs {', '.join(missing)}; install with `apt-get install {' '.join(missing)}`")


if __name__ == "__main__":
    main()
