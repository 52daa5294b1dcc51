"""Checks of `zonewise doctor`, and their findings. Pure."""
