"""Libraries for LD_PRELOAD, compiled from C sources in `support/programs`."""

import shutil
import subprocess
from pathlib import Path

from support.process import PROGRAMS


def compile_preload(source: str, directory: Path) -> Path:
    compiler = shutil.which("cc")
    assert compiler is not None, "no C compiler: `make setup` installs one"
    library = directory / Path(source).with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, PROGRAMS / source, "-ldl"], check=True)
    return library
