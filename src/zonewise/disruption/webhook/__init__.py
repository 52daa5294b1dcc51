"""Admission webhooks for evictions and deletes, and their registration."""
