"""Runs a Python program with a limit of open files: `limited.py COUNT PROGRAM ARGUMENT...`."""

import os
import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
