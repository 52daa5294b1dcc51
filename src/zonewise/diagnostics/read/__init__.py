"""Reads a cluster once for explain, status, doctor, plan and drain."""
