"""Putting Zonewise into a cluster and taking it out again: its manifests, applied, compared and removed."""
