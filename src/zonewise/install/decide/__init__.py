"""Decisions of an installation: the order of objects, their ownership, and their differences. Pure."""
