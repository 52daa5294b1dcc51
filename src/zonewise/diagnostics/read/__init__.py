"""Reads a live cluster for explain, status, doctor, plan and drain. All reads go through `reader`."""
