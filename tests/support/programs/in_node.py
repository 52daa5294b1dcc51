"""Become a program that sees the files of a node: `in_node.py PID PROGRAM ARGUMENT ...`. Its network is the machine's."""

import os
import sys

_, pid, *command = sys.argv
os.execvp("nsenter", ["nsenter", f"--target={pid}", "--mount", "--", *command])
