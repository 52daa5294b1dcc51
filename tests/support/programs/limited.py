"""Becomes another program that may have few files open: `limited.py HOW_MANY PROGRAM ARGUMENT...`."""

import os
import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
