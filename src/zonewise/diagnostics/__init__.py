"""Diagnostics: the state of a cluster, its problems, and explanations of single decisions.

`read` reads a live cluster, with the rights of the caller. `decide` is pure: `status`, `doctor` and `explain` build reports
from these objects or from a dump. The command line and the dashboard show them.
"""
