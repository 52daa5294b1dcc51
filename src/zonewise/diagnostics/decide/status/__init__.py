"""`zonewise status`: the state of a cluster as one report. Pure."""
