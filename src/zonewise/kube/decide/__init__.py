"""Protocols as state machines: list and watch, leader election, retries, event series. Pure."""
