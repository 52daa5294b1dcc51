"""Rows, traffic history and what-if answers of the dashboard. Pure."""
